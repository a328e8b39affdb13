"""What ranks that train one network together have in common: a group, batches, stages."""
