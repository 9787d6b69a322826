"""A call of a collective: what it is, what it computes, what is refused in it, what goes wrong among several."""
