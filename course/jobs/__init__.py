"""Launch runs and supervise them until they end: sites, engines, queues and turns."""
