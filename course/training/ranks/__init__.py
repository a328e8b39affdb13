"""What ranks that train one network need: a process group, pipeline stages, a store."""
