"""Plans from integers alone: who gets which rows, who sends what to whom, how many bytes lie where."""
