"""Runs, handed on to tools that draw them: TensorBoard, Trackio, Weights & Biases."""
