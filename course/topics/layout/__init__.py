"""Where the numbers of a batch lie in memory."""
