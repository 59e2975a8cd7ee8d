"""Random walks, with device functions that take and return tuples; a function makes one of them."""

import numpy as np
from numba import cuda, uint32

RIGHT, UP = (1, 0, -1, 0), (0, 1, 0, -1)


def generator(factor, increment):
    @cuda.jit(device=True)
    def draw(state):
        state = uint32(factor * state + increment)
        return state, state >> uint32(30)

    return draw


@cuda.jit(device=True)
def moved(place, direction):
    return place[0] + RIGHT[direction], place[1] + UP[direction]


draw = generator(uint32(1664525), uint32(1013904223))


@cuda.jit
def walk(out, num_steps):
    thread = cuda.grid(1)
    state, place = uint32(thread), (0, 0)
    for _ in range(num_steps):
        state, direction = draw(state)
        place = moved(place, direction)
    out[thread, 0], out[thread, 1] = place


out, places = np.zeros((2, 64, 2), np.int64)
walk[2, 32](out, 40)
states = np.arange(64)
for _ in range(40):
    states = (1664525 * states + 1013904223) % 2**32
    places += np.transpose((RIGHT, UP))[states >> 30]
assert np.array_equal(out, places)
