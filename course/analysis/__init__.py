"""Measurements that several labs share: roofline, traces, Tensor Cores, communication."""
