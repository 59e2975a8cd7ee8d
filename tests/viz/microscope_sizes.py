"""Sizes and places of the reference that the microscope shows, known apart from it."""

import numpy as np
import torch
from microscope_pages import reference

from pa_tutorial.paging.layouts import VllmLayout

ITEMSIZE, BLOCK_SIZE, NUM_THREADS = 2, 16, 128
THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE = 2, 16, 4
LAYOUT = VllmLayout(16, 1, head_size=128, block_size=BLOCK_SIZE, dtype=torch.float16)


def physical(logical_block: int) -> int:
    return int(reference()[0].arguments["block_tables"][0, logical_block])


def position(instruction: int) -> int:
    """Its number on the page, from 1."""
    numbers = np.unique(reference()[1].trace.records.instruction)
    return int(np.searchsorted(numbers, instruction)) + 1
