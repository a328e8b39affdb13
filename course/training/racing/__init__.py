"""What a run of a race leaves for the referee: marks in time and joules, weights, a network."""
