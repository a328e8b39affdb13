"""The race: train to a given accuracy in the least time, and with the least joules."""
