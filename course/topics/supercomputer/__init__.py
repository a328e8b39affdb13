"""Nodes, storage, queues; why one scales, and what it costs."""
