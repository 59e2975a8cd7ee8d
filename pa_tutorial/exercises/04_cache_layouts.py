"""Exercises of notebook 04: a byte address, and reading from the cache."""

import torch
from torch import Tensor

from pa_tutorial.checks.calls import Function, require_written
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded, on_steps, require_tensors, whole_numbers
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.paging.layouts import VllmLayout


# 1. ---------------------------------------------------------------------------------------------
def k_address(
    block: int, head: int, offset: int, dim: int, k_shape: tuple[int, ...], itemsize: int
) -> int:
    """The byte, from the start of k_cache, of one element of K; `offset` is in the block."""
    _, num_kv_heads, num_pieces, block_size, x = k_shape
    ### BEGIN SOLUTION
    piece = (block * num_kv_heads + head) * num_pieces + dim // x
    return ((piece * block_size + offset) * x + dim % x) * itemsize
    ### END SOLUTION


_BYTES = "Each index is worth the product of all sizes to the right of it. An address counts bytes."
_HALF, _FLOAT = torch.float16, torch.float32
ADDRESS_CASES = (
    # name, what it isolates, what its failure means, layout
    ("worked_example", "float16, heads of 32, blocks of 8", _BYTES, VllmLayout(7, 2, 32, 8, _HALF)),
    ("float32", "x is 4", _BYTES, VllmLayout(5, 3, 64, 16, _FLOAT)),
    ("block_size_32", "blocks of 32, one KV head", _BYTES, VllmLayout(4, 1, 64, 32, _HALF)),
    ("head_size_80", "ten pieces", _BYTES, VllmLayout(3, 4, 80, 16, _HALF)),
    ("many_blocks", "addresses that don't fit into 32 bits", _BYTES,
     VllmLayout(80_000, 32, 128, 16, _HALF)),
)  # fmt: skip


def places(layout: VllmLayout, draw: int) -> list[list[int]]:
    """[100, 4]: block, head, offset, dim"""
    _, num_kv_heads, pieces, block_size, x = layout.k_shape
    ends = layout.num_blocks, num_kv_heads, block_size, pieces * x
    return seeded(0, draw).integers(ends, size=(100, 4)).tolist()


def address_run(answer: Function, layout: VllmLayout, draw: int) -> Tensor:
    sizes = layout.k_shape, layout.dtype.itemsize
    found = [require_written(answer(*place, *sizes)) for place in places(layout, draw)]
    return torch.tensor([whole_numbers(found, 100)])


def package_layout(layout: VllmLayout, draw: int) -> Tensor:
    elements = [layout.k_element(*place) for place in places(layout, draw)]
    return torch.tensor([elements]) * layout.dtype.itemsize


# 2. ---------------------------------------------------------------------------------------------
def gather_blocks(
    k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int
) -> tuple[Tensor, Tensor]:
    """Copy K and V of one sequence out of its blocks, in vLLM's layout.

    k_cache      [num_blocks, num_kv_heads, head_size / x, block_size, x]
    v_cache      [num_blocks, num_kv_heads, head_size, block_size]
    block_table  [max_num_blocks_per_seq] int32; what follows the sequence is padding
    returns      K and V, each [seq_len, num_kv_heads, head_size]
    """
    # 1. how many blocks does the sequence have? the last one may not be full
    # 2. k_cache[numbers] is [blocks, num_kv_heads, head_size / x, block_size, x]:
    #    bring block and offset to the front, pieces and x to the end (permute), then reshape
    # 3. the same for v_cache; cut off what follows seq_len
    ### BEGIN SOLUTION
    _, num_kv_heads, _, block_size, _ = k_cache.shape
    numbers = block_table[: -(-seq_len // block_size)].long()
    k = k_cache[numbers].permute(0, 3, 1, 2, 4).reshape(-1, num_kv_heads, v_cache.shape[2])
    v = v_cache[numbers].permute(0, 3, 1, 2).reshape(-1, num_kv_heads, v_cache.shape[2])
    return k[:seq_len], v[:seq_len]
    ### END SOLUTION


GATHER_CASES = (
    *("worked_example", "one_full_block", "tail", "stale_slots", "shuffled_blocks"),
    *("wide_tables", "block_zero_in_use", "block_size_8", "gqa", "head_size_120_float16"),
)
K_AND_V = "K|V", "token", "head", "dimension"


def gather_run(answer: Function, case: DecodeProblem) -> Tensor:
    step, own, found = case.paged("vllm"), case.inputs(), []
    sequences = zip(step.block_tables, case.seq_lens, own.keys, own.values, strict=True)
    for table, seq_len, *like in sequences:
        result = require_written(answer(step.k_cache, step.v_cache, table, seq_len))
        found.append(torch.stack(require_tensors(result, "K and V", like)))
    return torch.cat(found, dim=1)


def tokens_written(case: DecodeProblem) -> Tensor:
    inputs = case.inputs()
    return torch.stack([torch.cat(inputs.keys), torch.cat(inputs.values)])


EXERCISES = (
    Exercise(
        solution=k_address,
        cases=graded(ADDRESS_CASES, address_run, package_layout, ("call", "place")),
        is_warm_up=True,
    ),
    Exercise(
        solution=gather_blocks,
        cases=on_steps(GATHER_CASES, gather_run, tokens_written, K_AND_V, bound=0.0),
    ),
)
