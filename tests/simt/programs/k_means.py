"""Steps of k-means: each point goes to its nearest centre, and a centre to its points' mean."""

import math

import numpy as np
from numba import cuda


@cuda.jit
def assign(labels, sums, counts, points, centres):
    i = cuda.grid(1)
    if i >= len(points):
        return
    nearest, best = 0, math.inf
    for k in range(len(centres)):
        dx, dy = points[i, 0] - centres[k, 0], points[i, 1] - centres[k, 1]
        if dx**2 + dy**2 < best:
            nearest, best = k, dx**2 + dy**2
    labels[i] = nearest
    cuda.atomic.add(counts, nearest, 1)
    for axis in range(2):
        cuda.atomic.add(sums, (nearest, axis), points[i, axis])


truth = np.repeat([[0, 0], [5, 0], [0, 5]], 40, axis=0)
points = truth + np.random.default_rng(0).normal(size=(120, 2)) / 5
centres, labels = points[[0, 50, 100]], np.zeros(120, np.int32)
for _ in range(2):
    sums, counts = np.zeros((3, 2)), np.zeros(3, np.int32)
    assign[4, 32](labels, sums, counts, points, centres)
    centres = sums / counts[:, None]
assert np.array_equal(labels, np.repeat(range(3), 40))
assert np.allclose(centres, points.reshape(3, 40, 2).mean(1))
