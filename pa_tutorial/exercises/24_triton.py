"""Exercises of notebook 24, in Triton: compute the scores of a tile, write new keys."""

from __future__ import annotations  # signatures mention tl.constexpr, and Triton may be missing

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.random_inputs import redrawn, seeded_torch
from pa_tutorial.exercises.triton_grading import (
    other_slots,
    require_some_written,
    run_kernel,
    sparse,
    tl,
    unwritten,
)
from pa_tutorial.kernels.triton.inputs import padded

EMPTY = -1.0  # what a cache holds before a kernel writes to it


def random(draw: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded_torch(14, draw))


def trials(
    draw: int,
    cases: Sequence[tuple],
    run: Callable,
    expected: Callable,
    ours: Callable,
    axes: tuple[str, ...],
) -> list[Trial]:
    """One trial per case: (name, what it isolates, what a failure means, sizes).

    run       run(answer, draw, *sizes)
    expected  expected(draw, *sizes)
    """

    def run_answer(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        return {"out": run(ours if function is None else function, draw, *sizes)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run_answer, sizes),
            references={"the same in torch": lambda sizes=sizes: {"out": expected(draw, *sizes)}},
            bounds={"out": 1e-6},
            axes=axes,
        )
        for name, isolates, meaning, sizes in cases
    ]


# 1. ---------------------------------------------------------------------------------------------


def score_tile(
    out_ptr,
    q_ptr,
    k_ptr,
    scale,
    num_tokens,
    k_stride,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    TILE_SIZE: tl.constexpr,
):
    """The scores of one tile of tokens. The grid has one program per tile.

    out  [num_tokens]             scale * (q . k_t)
    q    [HEAD_SIZE]
    k    [num_tokens, HEAD_SIZE]  consecutive tokens are k_stride elements apart

    All are float32. HEAD_SIZE_PADDED is a power of two, at least HEAD_SIZE.
    """
    token = tl.program_id(0) * TILE_SIZE + tl.arange(0, TILE_SIZE)
    element = tl.arange(0, HEAD_SIZE_PADDED)
    is_token, is_element = token < num_tokens, element < HEAD_SIZE
    q = tl.load(q_ptr + element, mask=is_element, other=0.0)
    # 1. load k [TILE_SIZE, HEAD_SIZE_PADDED]: token[:, None] is a column, element[None, :] a row
    # 2. multiply by q, sum over axis 1, store the scores of tokens that exist
    ### BEGIN SOLUTION
    is_k = is_token[:, None] & is_element[None, :]
    k = tl.load(k_ptr + token[:, None] * k_stride + element[None, :], mask=is_k, other=0.0)
    tl.store(out_ptr + token, scale * tl.sum(q[None, :] * k, axis=1), mask=is_token)
    ### END SOLUTION


_PADDING = "A tile's length is a power of two; a head's may not be. Mask the difference."
_TILES = "Program i takes the tokens from i * TILE_SIZE on; the last tile may not be full."
SCORE_CASES = (
    ("many_tiles", "80 tokens", _TILES, (80, 64, 0)),
    ("tail", "21 tokens: the last tile has 5", _TILES, (21, 32, 0)),
    ("head_size_80", "80 elements in a tile of 128", _PADDING, (16, 80, 0)),
    ("gaps", "NaN between the tokens", "The kernel must not read masked elements.", (37, 120, 24)),
)


def keys(draw: int, num_tokens: int, head_size: int, gap: int) -> Tensor:
    """[num_tokens, head_size], with NaN after each token."""
    memory = random(draw, num_tokens, head_size + gap)
    memory[:, head_size:] = torch.nan
    return memory[:, :head_size]


def run_scores(kernel: Callable, draw: int, num_tokens: int, head_size: int, gap: int) -> Tensor:
    out, k = unwritten(num_tokens), keys(draw, num_tokens, head_size, gap)
    run_kernel(
        kernel,
        (-(-num_tokens // 16), 1, 1),
        out_ptr=out,
        q_ptr=random(draw, head_size),
        k_ptr=k,
        scale=head_size**-0.5,
        num_tokens=num_tokens,
        k_stride=k.stride(0),
        HEAD_SIZE=head_size,
        HEAD_SIZE_PADDED=padded(head_size),
        TILE_SIZE=16,
    )
    return require_some_written(out)


def scores_in_torch(draw: int, num_tokens: int, head_size: int, gap: int) -> Tensor:
    k, q = keys(draw, num_tokens, head_size, gap), random(draw, head_size)
    return head_size**-0.5 * (k.double() @ q.double())


SCORES = Exercise(
    solution=score_tile,
    cases=lambda draw=0: trials(
        draw, SCORE_CASES, run_scores, scores_in_torch, score_tile, ("token",)
    ),
    is_warm_up=True,
)  # fmt: skip


# 2. ---------------------------------------------------------------------------------------------


def append_keys(
    out_ptr,
    k_new_ptr,
    slot_mapping_ptr,
    block_stride,
    head_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
):
    """Write new keys into the cache. The grid is (num_tokens, num_kv_heads).

    out           [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]   the cache, plain layout;
                  blocks are block_stride elements apart, heads head_stride
    k_new         [num_tokens, num_kv_heads, HEAD_SIZE]   contiguous
    slot_mapping  [num_tokens] int32   each token's slot, block * BLOCK_SIZE + offset; -1 for
                  a token that isn't stored

    HEAD_SIZE_PADDED is a power of two, at least HEAD_SIZE.
    """
    # 1. which token and which head are this program's? tl.num_programs(1) is the number of heads
    # 2. its slot: which block, which offset in it? For -1 there is nothing to do
    # 3. block * block_stride may be 2**31 or more: it needs 64 bits
    # 4. load the key and store it, both with a mask
    ### BEGIN SOLUTION
    token_idx = tl.program_id(0)
    head_idx = tl.program_id(1)
    element = tl.arange(0, HEAD_SIZE_PADDED)
    is_element = element < HEAD_SIZE
    slot = tl.load(slot_mapping_ptr + token_idx)
    if slot >= 0:
        k_new_offset = (token_idx * tl.num_programs(1) + head_idx) * HEAD_SIZE
        key = tl.load(k_new_ptr + k_new_offset + element, mask=is_element, other=0.0)
        block_number = (slot // BLOCK_SIZE).to(tl.int64)
        offset = block_number * block_stride + head_idx * head_stride
        offset += slot % BLOCK_SIZE * HEAD_SIZE
        tl.store(out_ptr + offset + element, key, mask=is_element)
    ### END SOLUTION


_SLOT = "A slot is in block slot // BLOCK_SIZE, at offset slot % BLOCK_SIZE."
_STRIDES = "Blocks are block_stride elements apart, heads head_stride: no size says how far."
_ONLY = "Write only this token's elements; all others must stay as they were."
APPEND_CASES = (
    ("one_token", "slot 21", _SLOT, ((21,), 64, 4096, 1024)),
    ("three_tokens", "slots in three blocks", _SLOT, ((5, 63, 32), 64, 4096, 1024)),
    ("gaps", "blocks and heads that are not side by side", _STRIDES, ((17, 34), 64, 5000, 2400)),
    ("nowhere", "a token with slot -1, and one with slot 0", "Only -1 is padding; 0 is a slot.",
     ((0, -1, 40), 64, 4096, 1024)),
    ("head_size_80", "80 elements in a tile of 128", _ONLY, ((3, 16, 31), 80, 4096, 1280)),
    ("large_pool", "block 3 begins after 2**31 elements",
     "Block number times stride overflows 32 bits and becomes negative.",
     ((50, 1), 64, 2**30, 1024)),
)  # fmt: skip


def empty_cache(head_size: int, block_stride: int, head_stride: int) -> Tensor:
    """Four blocks of two heads, [4, 2, 16, head_size], which are as many elements apart."""
    shape = 4, 2, 16, head_size
    memory = sparse(3 * block_stride + head_stride + 16 * head_size, torch.float16)
    cache = memory.as_strided(shape, (block_stride, head_stride, head_size, 1))
    return cache.fill_(EMPTY)


def run_append(
    kernel: Callable, draw: int, slots: tuple[int, ...], head_size: int, *strides: int
) -> Tensor:
    cache = empty_cache(head_size, *strides)
    run_kernel(
        kernel,
        (len(slots), 2, 1),
        out_ptr=cache,
        k_new_ptr=random(draw, len(slots), 2, head_size).half(),
        slot_mapping_ptr=torch.tensor(slots, dtype=torch.int32),
        block_stride=cache.stride(0),
        head_stride=cache.stride(1),
        BLOCK_SIZE=16,
        HEAD_SIZE=head_size,
        HEAD_SIZE_PADDED=padded(head_size),
    )
    return require_some_written(cache.clone(memory_format=torch.contiguous_format), EMPTY)


def append_in_torch(draw: int, slots: tuple[int, ...], head_size: int, *strides: int) -> Tensor:
    cache = torch.full((4, 2, 16, head_size), EMPTY, dtype=torch.float16)
    keys_of_tokens = random(draw, len(slots), 2, head_size).half()
    for slot, key in zip(slots, keys_of_tokens, strict=True):
        if slot >= 0:
            cache[slot // 16, :, slot % 16] = key
    return cache


APPEND = Exercise(
    solution=append_keys,
    cases=lambda draw=0: trials(
        draw, redrawn(APPEND_CASES, draw, other_slots), run_append, append_in_torch, append_keys,
        ("block", "head", "offset", "dimension"),
    ),
)  # fmt: skip

EXERCISES = (SCORES, APPEND)
