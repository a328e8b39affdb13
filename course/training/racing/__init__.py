"""What a racing run leaves for the referee: times, joules, weights, its network."""
