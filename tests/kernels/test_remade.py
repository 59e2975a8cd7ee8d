"""A kernel of a notebook remade for other constants."""

import numpy as np
import pytest
from numba import cuda

from pa_tutorial.kernels.remade import remade
from pa_tutorial.simt import launch

# This module is the notebook, and `In` has the texts of its cells.
HEAD_SIZE = 32
HALF = HEAD_SIZE // 2
In = ["", "HEAD_SIZE, DTYPE = 32, None\nHALF = HEAD_SIZE // 2\n", "print(HEAD_SIZE == 32)"]


@cuda.jit(device=True)
def width():
    return HEAD_SIZE + HALF


@cuda.jit
def write_width(out):
    out[cuda.threadIdx.x] = width()


@pytest.mark.parametrize(
    ("constants", "written"),
    [({"HEAD_SIZE": 64}, 96), ({"HEAD_SIZE": 64, "HALF": 0}, 64), ({"HEAD_SIZE": 32}, 48)],
)
def test_formulas_follow_in_device_functions_and_the_notebook_keeps_its_names(
    constants: dict[str, int], written: int
) -> None:
    out = np.zeros(2, np.float32)
    launch(remade(write_width, **constants), 1, 1, out[:1])
    launch(write_width, 1, 1, out[1:])
    assert out.tolist() == [written, 48]
    assert (HEAD_SIZE, HALF) == (32, 16)


def test_a_constant_that_no_cell_assigns_is_named() -> None:
    with pytest.raises(ValueError, match="no cell of this notebook assigns HEAD_SIZE, BLOCK_SIZE"):
        remade(write_width, HEAD_SIZE=64, BLOCK_SIZE=8)
