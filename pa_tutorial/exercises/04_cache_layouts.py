"""Exercises of notebook 04: a byte address, and reading from the cache."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import reseeded, seeded_torch
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import require_shape
from pa_tutorial.walk.calls import AnswerError, require_written
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem

NOTEBOOK = "04_cache_layouts"


# 1. ---------------------------------------------------------------------------------------------


def k_address(
    block: int, head: int, offset: int, dim: int, k_shape: tuple[int, ...], itemsize: int
) -> int:
    """The byte, from the start of k_cache, of one element of K; `offset` is that in the block."""
    _, num_kv_heads, num_pieces, block_size, x = k_shape
    ### BEGIN SOLUTION
    piece = (block * num_kv_heads + head) * num_pieces + dim // x
    return ((piece * block_size + offset) * x + dim % x) * itemsize
    ### END SOLUTION


ADDRESS_CASES = (
    ("worked_example", "float16, heads of 32, blocks of 8", (7, 2, 4, 8, 8), 2),
    ("float32", "x is 4", (5, 3, 16, 16, 4), 4),
    ("block_size_32", "blocks of 32 tokens, one KV head", (4, 1, 8, 32, 8), 2),
    ("head_size_80", "ten pieces", (3, 4, 10, 16, 8), 2),
    ("many_blocks", "addresses that do not fit into 32 bits", (80_000, 32, 16, 16, 8), 2),
)


def k_address_trials(draw: int = 0) -> list[Trial]:
    def places(shape: tuple[int, ...]) -> Tensor:
        """[100, 4]: block, head, offset, dim"""
        num_blocks, num_kv_heads, pieces, block_size, x = shape
        generator = seeded_torch(0, draw)
        columns = [
            torch.randint(size, (100,), generator=generator)
            for size in (num_blocks, num_kv_heads, block_size, pieces * x)
        ]
        return torch.stack(columns, dim=1)

    def run(shape: tuple[int, ...], itemsize: int, function: Callable | None) -> dict[str, Tensor]:
        answer = k_address if function is None else function
        addresses = [answer(*place, shape, itemsize) for place in places(shape).tolist()]
        for address in addresses:
            if not isinstance(require_written(address), int):
                raise AnswerError(f"it returned {address!r}; an address is a whole number")
        return {"out": torch.tensor(addresses)[None]}

    def expected(shape: tuple[int, ...], itemsize: int) -> dict[str, Tensor]:
        """By the strides of a tensor of that shape."""
        strides = torch.tensor(torch.empty(shape, device="meta").stride())
        block, head, offset, dim = places(shape).unbind(dim=1)
        x = shape[-1]
        index = torch.stack([block, head, dim // x, offset, dim % x], dim=1)
        return {"out": (index * strides).sum(dim=1)[None] * itemsize}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Each index is worth the product of all sizes to the right of it. "
            "An address counts bytes.",
            run=partial(run, shape, itemsize),
            references={"the strides of a tensor": partial(expected, shape, itemsize)},
            bounds={"out": 0.0},
            axes=("call", "place"),
        )
        for name, isolates, shape, itemsize in ADDRESS_CASES
    ]


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
    # 1. how many blocks does the sequence have? the last one need not be full
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
    "worked_example",
    "one_full_block",
    "tail",
    "stale_slots",
    "shuffled_blocks",
    "wide_tables",
    "block_zero_in_use",
    "block_size_8",
    "gqa",
    "head_size_120_float16",
)


def gather_blocks_trials(draw: int = 0) -> list[Trial]:
    def run(case: DecodeProblem, function: Callable | None) -> dict[str, Tensor]:
        answer = gather_blocks if function is None else function
        inputs = case.paged("vllm")
        both: list[list[Tensor]] = [[], []]
        for table, seq_len in zip(inputs.block_tables, case.seq_lens, strict=True):
            result = require_written(answer(inputs.k_cache, inputs.v_cache, table, seq_len))
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise AnswerError("it must return two tensors, K and V")
            for side, tensor in zip(both, result, strict=True):
                shape = [seq_len, case.num_kv_heads, case.head_size]
                if require_shape(tensor, shape).dtype != case.dtype:
                    raise AnswerError(f"it returned {tensor.dtype}; the cache is {case.dtype}")
                side.append(tensor)
        return {"out": torch.stack([torch.cat(side) for side in both])}

    def expected(case: DecodeProblem) -> dict[str, Tensor]:
        inputs = case.inputs()
        return {"out": torch.stack([torch.cat(inputs.keys), torch.cat(inputs.values)])}

    return [
        Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=case.meaning,
            run=partial(run, case),
            references={"the tokens that were written": partial(expected, case)},
            bounds={"out": 0.0},
            axes=("K|V", "token", "head", "dimension"),
        )
        for case in (reseeded(CASES[f"decode/{name}"], draw) for name in GATHER_CASES)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="> **Your turn.** The same for any element and any cache, in two lines. Notebook 09 "
        "spreads this formula over threads.",
        solution=k_address,
        trials=k_address_trials,
        is_warm_up=True,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Section 5 looks up every token. Copy whole blocks instead: index with the table, "
        "bring block and offset to the front, and cut off what no token owns.",
        solution=gather_blocks,
        trials=gather_blocks_trials,
    ),
)
