"""Exercises of notebook 06: slots with a token, attention block by block."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.online import empty_part, merge, part_of
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.calls import AnswerError, Function
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded, on_steps, require_tensor


# 1. ---------------------------------------------------------------------------------------------
def slots_with_token(block_idx: int, seq_lens: Tensor, block_size: int) -> Tensor:
    """Which slots of logical block block_idx hold a token of each sequence.

    seq_lens  [num_seqs]
    returns   [num_seqs, block_size] bool
    """
    # which token would each slot of this block hold?
    ### BEGIN SOLUTION
    token = block_idx * block_size + torch.arange(block_size)
    return token < seq_lens[:, None]
    ### END SOLUTION


_TOKENS = "Slot i of logical block b is for token b * block_size + i; tokens count from 0."
SLOTS_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, block_idx, seq_lens, block_size
    ("one_full_block", "a full block", _TOKENS, 0, (8,), 8),
    ("tail", "block 1 of the worked example: 3 tokens", _TOKENS, 1, (11,), 8),
    ("ended", "a full block, a tail, and no block at all", _TOKENS, 2, (12, 11, 8), 4),
    ("exactly", "a sequence that ends where the block begins", _TOKENS, 1, (16, 17), 16),
)


def later_blocks(
    rng: np.random.Generator, _: str, block_idx: int, seq_lens: tuple[int, ...], block_size: int
) -> tuple:
    """Blocks of another size, and more whole blocks at the start of every sequence."""
    more, times = map(int, rng.integers(2, 9, 2))
    lens = tuple(times * (n + more * block_size) for n in seq_lens)
    return None, block_idx + more, lens, times * block_size


def slots_run(answer: Function, block_idx: int, lens: tuple[int, ...], size: int) -> Tensor:
    result = answer(block_idx, torch.tensor(lens, dtype=torch.int32), size)
    return require_tensor(result, torch.empty(len(lens), size, dtype=torch.bool)).float()


def the_definition(block_idx: int, lens: tuple[int, ...], size: int) -> Tensor:
    tokens = range(block_idx * size, (block_idx + 1) * size)
    return torch.tensor([[float(token < n) for token in tokens] for n in lens])


# 2. ---------------------------------------------------------------------------------------------
def attend_sequence(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> Tensor:
    """Attention of one query over one sequence, block by block; K and V are never gathered.

    q                 [num_heads, head_size]
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size], NaN where there is no token
    block_table       [max_num_blocks_per_seq] int32; what follows the sequence is padding
    seq_len           tokens in the cache, the newest included
    returns           [num_heads, head_size], in the dtype of q; computed in float32

    No tensor may be larger than two blocks, counted for num_heads in float32:
    2 * num_heads * block_size * head_size * 4 bytes.
    """
    # 1. query heads that share a KV head are neighbours: q as [num_kv_heads, group, head_size]
    # 2. begin with a part without tokens: empty_part((num_kv_heads, group), head_size)
    # 3. for each block of the sequence: its K and V, [num_kv_heads, tokens, head_size] in float32;
    #    the last block may not be full: cut K and V to its tokens
    # 4. scores [num_kv_heads, group, tokens]; then part_of, then merge
    # 5. divide once, at the end; back to the shape and the dtype of q
    ### BEGIN SOLUTION
    _, num_kv_heads, block_size, head_size = k_cache.shape
    grouped = q.float().reshape(num_kv_heads, -1, head_size)
    part = empty_part(grouped.shape[:2], head_size)
    for first in range(0, seq_len, block_size):
        block = int(block_table[first // block_size])
        tokens = slice(0, min(block_size, seq_len - first))
        k, v = k_cache[block, :, tokens].float(), v_cache[block, :, tokens].float()
        qk = scale * (grouped @ k.mT)
        part = merge(part, part_of(qk, v))
    return (part.acc / part.l[..., None]).reshape(q.shape).to(q.dtype)
    ### END SOLUTION


ATTEND_CASES = (
    *("one_full_block", "tail", "one_token", "shuffled_blocks", "stale_slots", "worked_example"),
    *("block_zero_in_use", "wide_tables", "block_size_8", "gqa", "mqa", "other_scale"),
    *("deep_negative_scores", "huge_scores", "extreme_scores", "drifting_scores"),
    *("strided_q", "float16", "deep_negative_scores_float16", "head_size_120_float16"),
)
ATTEND_MEANINGS = {
    "one_full_block": "Look up each block in the table; merge every part; divide acc by l once, at "
    "the end. There are seq_len / block_size blocks, rounded up.",
    "tail": "Slots after the last token hold NaN, and 0 * NaN is NaN: cut K and V to the tokens.",
    "one_token": "The other slots of the block hold NaN, and 0 * NaN is NaN: cut K and V.",
    "worked_example": "Is each part merged, and is acc divided by l once, at the end?",
}


def attend_run(answer: Function, case: DecodeProblem) -> dict[str, Tensor]:
    most = 2 * case.num_heads * case.block_size * case.head_size * torch.float32.itemsize

    def as_stage(q: Tensor, block_tables: Tensor, seq_lens: Tensor, **step: Any) -> Tensor:
        outs = []
        for own_q, table, seq_len in zip(q, block_tables, seq_lens.tolist(), strict=True):
            with TensorsMade() as made:
                out = answer(own_q, step["k_cache"], step["v_cache"], table, seq_len, step["scale"])
            outs.append(require_tensor(out, own_q))
            if max(made.sizes, default=0) > most:
                raise AnswerError(
                    f"it made a tensor of {max(made.sizes):,} bytes; more than two blocks, "
                    f"{most:,} bytes, are not allowed: K or V was gathered, or the whole "
                    "cache was converted"
                )
        return torch.stack(outs)

    return STAGES["paged_online"].run(case, as_stage)


EXERCISES = (
    Exercise(
        solution=slots_with_token,
        cases=graded(
            SLOTS_CASES, slots_run, the_definition, ("sequence", "slot"), again=later_blocks
        ),
        is_warm_up=True,
    ),
    Exercise(
        solution=attend_sequence,
        cases=on_steps(ATTEND_CASES, attend_run, meanings=ATTEND_MEANINGS),
    ),
)
