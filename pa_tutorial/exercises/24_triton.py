"""Blanks of notebook 24, in Triton: a kernel that writes new keys, and the parts of one that reads.

A part can't be launched, so a small kernel calls it and stores what it returns. All run in the
interpreter, where a kernel may be handed a Python object as a constant.
"""

from __future__ import annotations  # signatures mention tl.constexpr, and Triton may be missing

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.random_inputs import redrawn, seeded_torch
from pa_tutorial.exercises.triton_grading import (
    TAKES_LESS,
    Written,
    other_slots,
    require_some_written,
    run_compiled,
    run_kernel,
    sparse,
    tl,
    triton,
    unwritten,
)
from pa_tutorial.kernels.triton.inputs import padded

EMPTY = -1.0  # what a cache holds before a kernel writes to it
ROWS = 16  # of the tiles below
FAR = 2**40  # where nothing may be read


def random(draw: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded_torch(14, draw))


def shuffled(draw: int, n: int) -> Tensor:
    return torch.randperm(n, generator=seeded_torch(n, draw))


def trials(
    draw: int,
    cases: Sequence[tuple],
    run: Callable,
    expected: Callable,
    ours: Callable,
    axes: tuple[str, ...],
) -> list[Trial]:
    """One trial per case: (name, what it isolates, what a failure means, sizes); and one more, in
    which what is right for the first case is compiled, too.

    run       run(launch, answer, draw, *sizes) -> quantity -> tensor, or `out` alone
    expected  expected(draw, *sizes), the same
    """

    def by_name(result: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
        return result if isinstance(result, dict) else {"out": result}

    def wanted(sizes: tuple) -> dict[str, Tensor]:
        return by_name(expected(draw, *sizes))

    def run_answer(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        return by_name(run(run_kernel, function or ours, draw, *sizes))

    def compile_answer(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        found = run_answer(sizes, function)
        if all(close(found[name], right) for name, right in wanted(sizes).items()):
            run(run_compiled, function or ours, draw, *sizes)
        return found

    compiled = ("compiled", "the same for Triton's compiler", TAKES_LESS, cases[0][3])
    runs = [run_answer] * len(cases) + [compile_answer]
    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run_this, sizes),
            references={"the same in torch": partial(wanted, sizes)},
            bounds=dict.fromkeys(("qk_max", "exp_sum", "accs", "out"), 1e-6),
            axes=axes,
        )
        for run_this, (name, isolates, meaning, sizes) in zip(runs, [*cases, compiled], strict=True)
    ]


def close(found: Tensor, right: Tensor) -> bool:
    return torch.allclose(found.double(), right.double(), rtol=1e-4, atol=1e-4)


# 1. ---------------------------------------------------------------------------------------------


@triton.jit
def head_tile(begin, is_row, HEAD_SIZE: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr):
    """A tile with one head per row: where its elements are, and which exist.

    begin    [num_rows]  offset of each row's first element, from the tensor's first
    is_row   [num_rows]  which rows exist
    returns  offset, mask [num_rows, HEAD_SIZE_PADDED]; HEAD_SIZE_PADDED is the next power of two
    """
    # 1. number the elements of a row
    # 2. where is each element of each row?
    # 3. which elements of the tile exist? Return both
    ### BEGIN SOLUTION
    element = tl.arange(0, HEAD_SIZE_PADDED)
    mask = is_row[:, None] & (element < HEAD_SIZE)[None, :]
    return begin[:, None] + element[None, :], mask
    ### END SOLUTION


@triton.jit
def check_of_head_tile(
    out_ptr, x_ptr, begin_ptr, num_rows, CALL: tl.constexpr, ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    begin = tl.load(begin_ptr + row)
    offset, mask = CALL(begin, row < num_rows, HEAD_SIZE, HEAD_SIZE_PADDED)
    tile = tl.load(x_ptr + offset, mask=mask, other=0.0)
    place = row[:, None] * HEAD_SIZE_PADDED + tl.arange(0, HEAD_SIZE_PADDED)[None, :]
    tl.store(out_ptr + place, tile)


_PADDING = "A tile's length is a power of two; a head's may not be. Mask the difference."
_ROWS = (
    "A row that doesn't exist must not be read, wherever it seems to begin. Use & between tiles, "
    "with parentheses around each comparison; `and` looks at one element."
)
HEAD_CASES = (
    ("full", "16 rows of 32 elements", "Element 0 of a row is at its begin.", (16, 32, 0)),
    ("rows", "11 of 16 rows exist", _ROWS, (11, 32, 0)),
    ("head_size_80", "80 elements in a row of 128", _PADDING, (16, 80, 0)),
    ("gaps", "NaN between the rows", _PADDING, (5, 120, 24)),
)


def heads(draw: int, num_rows: int, head_size: int, gap: int) -> tuple[Tensor, Tensor]:
    """Heads in memory, with NaN after each, in any order; and where each begins."""
    memory = random(draw, num_rows, head_size + gap)
    memory[:, head_size:] = torch.nan
    begin = torch.full((ROWS,), FAR)
    begin[:num_rows] = shuffled(draw, num_rows) * (head_size + gap)
    return memory.flatten()[: memory.numel() - gap], begin


def run_head_tile(
    launch: Callable, answer: Callable, draw: int, num_rows: int, head_size: int, gap: int
) -> Tensor:
    memory, begin = heads(draw, num_rows, head_size, gap)
    out = unwritten(ROWS, padded(head_size))
    launch(
        check_of_head_tile,
        (1, 1, 1),
        out_ptr=out,
        x_ptr=memory,
        begin_ptr=begin,
        num_rows=num_rows,
        CALL=Written(answer, ("offset", "mask")),
        ROWS=ROWS,
        HEAD_SIZE=head_size,
        HEAD_SIZE_PADDED=padded(head_size),
    )
    return out


def head_tile_in_torch(draw: int, num_rows: int, head_size: int, gap: int) -> Tensor:
    memory, begin = heads(draw, num_rows, head_size, gap)
    out = torch.zeros(ROWS, padded(head_size))
    for row in range(num_rows):
        out[row, :head_size] = memory[begin[row] :][:head_size]
    return out


HEAD_TILE = Exercise(
    solution=head_tile,
    cases=lambda draw=0: trials(
        draw, HEAD_CASES, run_head_tile, head_tile_in_torch, head_tile, ("row", "element")
    ),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------


@triton.jit
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
    token_idx, head_idx = tl.program_id(0), tl.program_id(1)
    k_new_offset = (token_idx * tl.num_programs(1) + head_idx) * HEAD_SIZE
    # 1. the token's slot; if it isn't stored, there is nothing more to do
    # 2. load the new key, which begins at k_new_offset
    # 3. where does its place in the cache begin? The pool may be larger than 2**31 elements
    # 4. store the key there
    ### BEGIN SOLUTION
    element = tl.arange(0, HEAD_SIZE_PADDED)
    is_element = element < HEAD_SIZE
    slot = tl.load(slot_mapping_ptr + token_idx)
    if slot >= 0:
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
    ("nowhere", "a token with slot -1, and one with slot 0", "Slot -1 isn't stored; slot 0 is.",
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
    launch: Callable,
    kernel: Callable,
    draw: int,
    slots: tuple[int, ...],
    head_size: int,
    *strides: int,
) -> Tensor:
    cache = empty_cache(head_size, *strides)
    launch(
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
    is_warm_up=True,
)  # fmt: skip


# 3. ---------------------------------------------------------------------------------------------


@triton.jit
def token_offsets(
    block_table_ptr,
    token_idx,
    is_token,
    kv_head_idx,
    kv_block_stride,
    kv_head_stride,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Where the key of each token of a tile begins, and its value too.

    block_table_ptr  address of the sequence's row: int32, one block number per block
    token_idx        [TILE_SIZE]  positions in the sequence
    is_token         [TILE_SIZE]  which of them exist; the row may have no entry after
                     the last token's block
    returns          [TILE_SIZE]  int64: offsets from the cache's first element
    """
    # 1. the block number of each token that exists
    # 2. where the block begins, this head in it, and this token in that
    ### BEGIN SOLUTION
    block_number = tl.load(block_table_ptr + token_idx // BLOCK_SIZE, mask=is_token, other=0)
    offset = block_number.to(tl.int64) * kv_block_stride + kv_head_idx * kv_head_stride
    return offset + token_idx % BLOCK_SIZE * HEAD_SIZE
    ### END SOLUTION


@triton.jit
def check_of_token_offsets(
    out_ptr, block_table_ptr, seq_len, kv_head_idx, kv_block_stride, kv_head_stride,
    CALL: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_SIZE: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * TILE_SIZE
    token_idx = start + tl.arange(0, TILE_SIZE)
    is_token = token_idx < seq_len
    offset = CALL(
        block_table_ptr, token_idx, is_token, kv_head_idx, kv_block_stride, kv_head_stride,
        HEAD_SIZE, BLOCK_SIZE,
    )  # fmt: skip
    tl.store(out_ptr + token_idx, offset, mask=is_token)


_NEXT = (
    "The table has one entry per block: where the block is in the pool. In it, tokens are "
    "HEAD_SIZE elements apart."
)
_BLOCK = "The block table says which block a token is in; count from that block's first token."
_END = "A block table may end with the sequence's last block: look up only tokens that exist."
_LARGE = "Block number times stride overflows 32 bits and becomes negative."
OFFSET_CASES = (
    # name, what it isolates, what a failure means, (seq_len, block_size, kv head, stride of blocks)
    ("one_block", "16 tokens in a block", _NEXT, (16, 16, 0, 1024)),
    ("two_blocks", "16 tokens in two blocks", _BLOCK, (16, 8, 0, 1024)),
    ("second_head", "KV head 1", "Heads are kv_head_stride elements apart.", (16, 8, 1, 1024)),
    ("tail", "11 tokens in a tile of 16", _END, (11, 4, 0, 1024)),
    ("many_tiles", "53 tokens", "Count tokens from the sequence's first.", (53, 16, 1, 2048)),
    ("large_pool", "blocks 2**30 elements apart", _LARGE, (16, 8, 0, 2**30)),
)


def table_of(draw: int, seq_len: int, block_size: int) -> Tensor:
    """Block numbers from 2 on, in any order, as many as the sequence has blocks."""
    return (shuffled(draw, 64)[: -(-seq_len // block_size)] + 2).int()


def run_offsets(
    launch: Callable,
    answer: Callable,
    draw: int,
    seq_len: int,
    block_size: int,
    head: int,
    block_stride: int,
) -> Tensor:
    out = torch.full((seq_len,), -1)
    launch(
        check_of_token_offsets,
        (-(-seq_len // ROWS), 1, 1),
        out_ptr=out,
        block_table_ptr=table_of(draw, seq_len, block_size),
        seq_len=seq_len,
        kv_head_idx=head,
        kv_block_stride=block_stride,
        kv_head_stride=512,
        CALL=Written(answer),
        HEAD_SIZE=32,
        BLOCK_SIZE=block_size,
        TILE_SIZE=ROWS,
    )
    return out


def offsets_in_torch(
    draw: int, seq_len: int, block_size: int, head: int, block_stride: int
) -> Tensor:
    token = torch.arange(seq_len)
    block_number = table_of(draw, seq_len, block_size).long()[token // block_size]
    return block_number * block_stride + head * 512 + token % block_size * 32


OFFSETS = Exercise(
    solution=token_offsets,
    cases=lambda draw=0: trials(
        draw, OFFSET_CASES, run_offsets, offsets_in_torch, token_offsets, ("token",)
    ),
    is_warm_up=True,
)


# 4. ---------------------------------------------------------------------------------------------


@triton.jit
def scores_of_tile(q, k, scale, slopes, token_idx, is_token, seq_len):
    """The scores of a tile of queries and a tile of tokens.

    q          [num_rows, HEAD_SIZE_PADDED]   one query head per row
    k          [TILE_SIZE, HEAD_SIZE_PADDED]  one token per row; both have 0 in what is masked
    slopes     [num_rows]                     ALiBi, 0 without it
    token_idx  [TILE_SIZE]                    positions in the sequence, which has seq_len tokens
    is_token   [TILE_SIZE]                    which of them exist
    returns    [num_rows, TILE_SIZE] float32
    """
    # 1. scale times q . k: tl.dot(a, b, input_precision="ieee") multiplies two matrices
    # 2. add each head's slope times the distance to the newest token, which is negative or 0
    # 3. a token that doesn't exist gets the score that softmax turns into 0
    ### BEGIN SOLUTION
    qk = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
    qk += slopes[:, None] * (token_idx - seq_len + 1)[None, :]
    return tl.where(is_token[None, :], qk, float("-inf"))
    ### END SOLUTION


@triton.jit
def check_of_scores(
    out_ptr, q_ptr, k_ptr, slopes_ptr, scale, start, seq_len, CALL: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, element = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token_idx = start + row
    q = tl.load(q_ptr + row[:, None] * WIDTH + element[None, :])
    k = tl.load(k_ptr + row[:, None] * WIDTH + element[None, :])
    slopes = tl.load(slopes_ptr + row)
    qk = CALL(q, k, scale, slopes, token_idx, token_idx < seq_len, seq_len)
    tl.store(out_ptr + row[:, None] * ROWS + row[None, :], qk)


_MASK = "exp(-inf) is 0, and exp(0) isn't."
_ALIBI = (
    "The newest token has distance 0, and the one before it -1. Slopes belong to rows and "
    "distances to columns; only q . k is scaled."
)
TILE_SCORE_CASES = (
    # name, what it isolates, what a failure means, (first token, seq_len, with ALiBi)
    ("full", "16 tokens", "qk = scale * (q . k)", (0, 16, False)),
    ("tail", "11 of 16 tokens exist", _MASK, (0, 11, False)),
    ("alibi", "slopes", _ALIBI, (0, 16, True)),
    ("second_tile", "tokens from 16 on, with slopes", _ALIBI, (16, 27, True)),
)


def tile_inputs(draw: int, start: int, seq_len: int, alibi: bool) -> dict[str, Tensor]:
    k = random(draw + 1, ROWS, 32)
    k[seq_len - start :] = 0
    slopes = 0.5 ** torch.arange(1.0, ROWS + 1) if alibi else torch.zeros(ROWS)
    return {"q": random(draw, ROWS, 32), "k": k, "slopes": slopes}


def run_scores(
    launch: Callable, answer: Callable, draw: int, start: int, seq_len: int, alibi: bool
) -> Tensor:
    out, inputs = unwritten(ROWS, ROWS), tile_inputs(draw, start, seq_len, alibi)
    launch(
        check_of_scores,
        (1, 1, 1),
        out_ptr=out,
        q_ptr=inputs["q"],
        k_ptr=inputs["k"],
        slopes_ptr=inputs["slopes"],
        scale=32**-0.5,
        start=start,
        seq_len=seq_len,
        CALL=Written(answer),
        ROWS=ROWS,
        WIDTH=32,
    )
    return out


def scores_in_torch(draw: int, start: int, seq_len: int, alibi: bool) -> Tensor:
    inputs = tile_inputs(draw, start, seq_len, alibi)
    token = start + torch.arange(ROWS)
    qk = 32**-0.5 * inputs["q"].double() @ inputs["k"].double().T
    qk += inputs["slopes"][:, None] * (token - (seq_len - 1))
    return qk.masked_fill(token >= seq_len, float("-inf"))


SCORES = Exercise(
    solution=scores_of_tile,
    cases=lambda draw=0: trials(
        draw, TILE_SCORE_CASES, run_scores, scores_in_torch, scores_of_tile, ("row", "token")
    ),
    is_warm_up=True,
)


# 5. ---------------------------------------------------------------------------------------------


@triton.jit
def add_tile(m, l, acc, qk, v):
    """Add a tile of tokens to a part of each query head.

    m, l     [num_rows]                     largest score so far; sum of exp(score - m)
    acc      [num_rows, HEAD_SIZE_PADDED]   sum of exp(score - m) * v
    qk       [num_rows, TILE_SIZE]          scores; every row has one above -inf
    v        [TILE_SIZE, HEAD_SIZE_PADDED]  float32
    returns  m, l, acc with the tile, float32
    """
    # 1. each row's new maximum: tl.max and tl.sum take axis, tl.maximum compares two tiles
    # 2. the tile's weights, and what the old sums must be multiplied by
    # 3. l and acc; weights times v is another tl.dot, again "ieee". Return all three
    ### BEGIN SOLUTION
    m_new = tl.maximum(m, tl.max(qk, axis=1))
    weights = tl.exp(qk - m_new[:, None])
    rescale = tl.exp(m - m_new)
    l = l * rescale + tl.sum(weights, axis=1)
    acc = acc * rescale[:, None] + tl.dot(weights, v, input_precision="ieee")
    return m_new, l, acc
    ### END SOLUTION


@triton.jit
def check_of_add_tile(
    out_m_ptr, out_l_ptr, out_acc_ptr, out_ptr, qk_ptr, v_ptr, num_tiles, CALL: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, element = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    m, l = tl.full([ROWS], float("-inf"), tl.float32), tl.full([ROWS], 0.0, tl.float32)
    acc = tl.full([ROWS, WIDTH], 0.0, tl.float32)
    for tile in range(num_tiles):
        token = tile * ROWS + row
        qk = tl.load(qk_ptr + row[:, None] * num_tiles * ROWS + token[None, :])
        v = tl.load(v_ptr + token[:, None] * WIDTH + element[None, :])
        m, l, acc = CALL(m, l, acc, qk, v)
    tl.store(out_m_ptr + row, m)
    tl.store(out_l_ptr + row, l)
    tl.store(out_acc_ptr + row[:, None] * WIDTH + element[None, :], acc)
    tl.store(out_ptr + row[:, None] * WIDTH + element[None, :], acc / l[:, None])


_ROW = (
    "Each row has its own maximum, over axis 1, and the new one is returned. Before the first "
    "tile m is -inf, so what multiplies the old sums must be 0."
)
_RESCALE = "When the maximum grows, the old sums are too large by exp(m_new - m)."
ADD_CASES = (
    # name, what it isolates, what a failure means, (tiles, by how much each exceeds the last, tail)
    ("one_tile", "16 tokens", _ROW, (1, 0.0, 0)),
    ("tail", "5 scores are -inf", "exp(-inf) is 0.", (1, 0.0, 5)),
    ("growing", "a larger maximum in each of 3 tiles", _RESCALE, (3, 2.0, 5)),
    (
        "falling",
        "the first tile has the maximum",
        "m never falls: tl.maximum compares row by row, Python's max doesn't.",
        (3, -2.0, 0),
    ),
    ("large", "scores around 1,000", "Subtract the maximum before exp.", (2, 1000.0, 0)),
)


def tiles_of(draw: int, num_tiles: int, step: float, tail: int) -> tuple[Tensor, Tensor]:
    """qk [ROWS, num_tiles * ROWS], the last `tail` columns -inf; v [num_tiles * ROWS, 32]."""
    qk = random(draw, ROWS, num_tiles * ROWS)
    qk += step * (1 + torch.arange(num_tiles * ROWS) // ROWS)
    qk[:, num_tiles * ROWS - tail :] = float("-inf")
    return qk, random(draw + 1, num_tiles * ROWS, 32)


def run_add(launch: Callable, answer: Callable, draw: int, *sizes: int) -> dict[str, Tensor]:
    qk, v = tiles_of(draw, *sizes)
    widths = {"out_m_ptr": 1, "out_l_ptr": 1, "out_acc_ptr": 32, "out_ptr": 32}
    outputs = {name: unwritten(ROWS, width) for name, width in widths.items()}
    launch(
        check_of_add_tile,
        (1, 1, 1),
        **outputs,
        qk_ptr=qk,
        v_ptr=v,
        num_tiles=sizes[0],
        CALL=Written(answer, ("m", "l", "acc")),
        ROWS=ROWS,
        WIDTH=32,
    )
    return dict(zip(("qk_max", "exp_sum", "accs", "out"), outputs.values(), strict=True))


def added_in_torch(draw: int, *sizes: int) -> dict[str, Tensor]:
    qk, v = (tensor.double() for tensor in tiles_of(draw, *sizes))
    m = qk.amax(dim=1, keepdim=True)
    weights = torch.exp(qk - m)
    l, acc = weights.sum(dim=1, keepdim=True), weights @ v
    return {"qk_max": m, "exp_sum": l, "accs": acc, "out": acc / l}


ADD = Exercise(
    solution=add_tile,
    cases=lambda draw=0: trials(
        draw, ADD_CASES, run_add, added_in_torch, add_tile, ("row", "element")
    ),
    is_warm_up=True,
)

EXERCISES = (HEAD_TILE, APPEND, OFFSETS, SCORES, ADD)
