"""Models with a state, to be made safe: counters, caches, hidden states, statistics, lists, attributes."""
