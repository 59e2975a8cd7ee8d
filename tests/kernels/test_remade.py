"""Tools of the kernel notebooks: a kernel remade for other constants; the score."""

import numpy as np
import pytest
import torch
from numba import cuda, float32

from pa_tutorial.kernels.remade import remade
from pa_tutorial.simt import launch
from pa_tutorial.viz.score import STEP, score

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


def written_by(kernel: object) -> float:
    out = np.zeros(1, np.float32)
    launch(kernel, 1, 1, out)
    return float(out[0])


def test_what_the_formulas_compute_follows_in_device_functions_too() -> None:
    assert written_by(remade(write_width, HEAD_SIZE=64)) == 96
    assert written_by(remade(write_width, HEAD_SIZE=64, HALF=0)) == 64


def test_the_names_of_the_notebook_stay_as_they_are() -> None:
    remade(write_width, HEAD_SIZE=64)
    assert (HEAD_SIZE, HALF, written_by(write_width)) == (32, 16, 48)


def test_a_constant_that_no_cell_assigns_is_named() -> None:
    with pytest.raises(ValueError, match="no cell of this notebook assigns HEAD_SIZE, BLOCK_SIZE"):
        remade(write_width, HEAD_SIZE=64, BLOCK_SIZE=8)


# The score ----------------------------------------------------------------------------------------


@cuda.jit
def read_once(out, k_cache, v_cache):
    t = cuda.threadIdx.x
    out[t] = float32(k_cache[0, 0, 0, t % 16, 0]) + float32(v_cache[0, 0, 0, t % 16])


def test_a_row_counts_what_a_kernel_did() -> None:
    step = STEP.paged("vllm")
    arguments = torch.zeros(32), step.k_cache, step.v_cache
    report = launch(read_once, 2, 32, *arguments, trace="all", checks=())
    table = score("of a test", report, read_once, *arguments)
    # 16 keys 16 bytes apart are 8 sectors, 16 values side by side are 1
    assert table.rows[-1][:9] == ("of a test", 2, 2, 16, 2, 2, 0, 0, 6)
    assert [row[0] for row in table.rows[:-1]] == ["naive", "v1", "v1, vectors", "v2"]
