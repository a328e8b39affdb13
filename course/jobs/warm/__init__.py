"""How a job's processes start: most are forked from one that has imported PyTorch already."""
