"""Who asked to be told: of operators without a fixed order, of calls that wait for a GPU."""
