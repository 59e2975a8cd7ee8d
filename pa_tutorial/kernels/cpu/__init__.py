"""A side trip: the same kernel for CPUs, on all cores, with vectors."""
