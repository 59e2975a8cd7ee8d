"""The same blocks, tables and merges over many devices, on torch.distributed."""
