"""Distances in a graph: a launch for each frontier, until there is none."""

import numpy as np
from numba import cuda


@cuda.jit
def expand(distances, size, following, frontier, neighbours, depth):
    i = cuda.grid(1)
    if i < frontier.size:
        for other in neighbours[frontier[i]]:
            if other >= 0 and cuda.atomic.cas(distances, other, -1, depth) == -1:
                following[cuda.atomic.add(size, 0, 1)] = other


side = 4  # of a grid of nodes, each joined to those beside it
nodes = np.pad(np.arange(side**2).reshape(side, side), 1, constant_values=-1)
beside = nodes[:-2, 1:-1], nodes[2:, 1:-1], nodes[1:-1, :-2], nodes[1:-1, 2:]
neighbours = cuda.to_device(np.stack(beside, axis=-1).reshape(side**2, 4))
distances, frontier = cuda.to_device(np.full(side**2, -1)), cuda.to_device(np.array([0]))
distances[0] = depth = 0
while frontier.size:
    depth += 1
    size, following = np.zeros(1, np.int64), cuda.device_array(side**2, np.int64)
    expand[1, 32](distances, size, following, frontier, neighbours, depth)
    frontier = following[: size[0]]
assert np.array_equal(distances, np.add.outer(range(side), range(side)).ravel())
