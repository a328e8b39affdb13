"""Measurements that several labs share: memory, roofline, traces, communication."""
