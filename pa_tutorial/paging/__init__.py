"""The memory manager: layouts, blocks, block tables, sharing, eviction, swap."""
