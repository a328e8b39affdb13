"""Where a run computes: sites, engines, queues, turns; from launch to its end."""
