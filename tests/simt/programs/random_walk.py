"""Random walks; their generator is a device function that another function makes."""

import numpy as np
from numba import cuda, uint32

STEPS = (1, 0, -1, 0), (0, 1, 0, -1)


def generator(factor, increment):
    @cuda.jit(device=True)
    def draw(state):
        state = uint32(factor * state + increment)
        return state, state >> uint32(30)

    return draw


draw = generator(uint32(1664525), uint32(1013904223))


@cuda.jit
def walk(out, num_steps):
    state, place = uint32(cuda.grid(1)), (0, 0)
    for _ in range(num_steps):
        state, direction = draw(state)
        place = place[0] + STEPS[0][direction], place[1] + STEPS[1][direction]
    out[cuda.grid(1), 0], out[cuda.grid(1), 1] = place


out, places = np.zeros((2, 64, 2), np.int64)
walk[2, 32](out, 40)
states = np.arange(64)
for _ in range(40):
    states = (1664525 * states + 1013904223) % 2**32
    places += np.transpose(STEPS)[states >> 30]
assert np.array_equal(out, places)
