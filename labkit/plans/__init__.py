"""Plans from integers alone: the rows of each GPU, the messages of ranks, the bytes on each GPU."""
