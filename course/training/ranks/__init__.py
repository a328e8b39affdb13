"""Helpers for ranks that train one network: a process group, pipeline stages, a store."""
