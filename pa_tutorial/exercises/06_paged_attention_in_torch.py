"""Exercises of notebook 06: slots with a token, block by block, one query at a time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.attention.online import empty_part, merge, part_of
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.comparing import bounds_of
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import new_names, reseeded, seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import require_shape
from pa_tutorial.walk.calls import AnswerError, require_written
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from pa_tutorial.walk.problem import DecodeProblem

NOTEBOOK = "06_paged_attention_in_torch"


# 1. ---------------------------------------------------------------------------------------------


def slots_with_token(block_idx: int, seq_lens: Tensor, block_size: int) -> Tensor:
    """Which slots of logical block block_idx hold a token of each sequence.

    seq_lens  [num_seqs]
    returns   [num_seqs, block_size] bool
    """
    # which token would lie in each slot of this block?
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


def slots_with_token_trials(draw: int = 0) -> list[Trial]:
    def expected(block_idx: int, seq_lens: tuple[int, ...], block_size: int) -> dict[str, Tensor]:
        first = block_idx * block_size
        rows = [[float(t < n) for t in range(first, first + block_size)] for n in seq_lens]
        return {"out": torch.tensor(rows)}

    def run(case: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = slots_with_token if function is None else function
        block_idx, seq_lens, block_size = case
        lens = torch.tensor(seq_lens, dtype=torch.int32)
        result = require_shape(answer(block_idx, lens, block_size), [len(seq_lens), block_size])
        if result.dtype != torch.bool:
            raise AnswerError(f"it returned {result.dtype}; it must return torch.bool")
        return {"out": result.float()}

    def drawn(index: int, block_idx: int, seq_lens: tuple[int, ...], block_size: int) -> tuple:
        """Blocks of another size, and as many whole ones more, in front of all sequences."""
        more, times = map(int, seeded(index, draw).integers(2, 9, 2)) if draw else (0, 1)
        lens = tuple(times * (n + more * block_size) for n in seq_lens)
        return block_idx + more, lens, times * block_size

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, case),
            references={"the definition": partial(expected, *case)},
            bounds={"out": 0.0},
            axes=("sequence", "slot"),
        )
        for index, (name, isolates, meaning, *sizes) in enumerate(SLOTS_CASES)
        for case in (drawn(index, *sizes),)
    ]


# 2. ---------------------------------------------------------------------------------------------


def attend_sequence(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> Tensor:
    """Attention of one query over one sequence, block by block; K and V are never gathered.

    q                 [num_heads, head_size]
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size], NaN where no token lives
    block_table       [max_num_blocks_per_seq] int32; what follows the sequence is padding
    seq_len           tokens in the cache, the newest included
    returns           [num_heads, head_size], in the dtype of q; computed in float32

    No tensor may be larger than two blocks, counted for num_heads in float32:
    2 * num_heads * block_size * head_size * 4 bytes.
    """
    # 1. query heads that share a KV head stand together: q as [num_kv_heads, group, head_size]
    # 2. begin with the part of no token: empty_part((num_kv_heads, group), head_size)
    # 3. for each block of the sequence: its K and V, [num_kv_heads, tokens, head_size] in float32;
    #    the last block need not be full: cut K and V to its tokens
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


def attend_sequence_trials(draw: int = 0) -> list[Trial]:
    def run(case: DecodeProblem, function: Callable | None) -> dict[str, Tensor]:
        answer = attend_sequence if function is None else function
        block = case.num_heads * case.block_size * case.head_size * torch.float32.itemsize

        def as_stage(q: Tensor, *step_arguments: Any) -> Tensor:
            k_cache, v_cache, tables, seq_lens, scale, _no_slopes = step_arguments
            outs = []
            for own_q, table, seq_len in zip(q, tables, seq_lens.tolist(), strict=True):
                with TensorsMade() as made:
                    out = answer(own_q, k_cache, v_cache, table, seq_len, scale)
                if require_shape(out, list(own_q.shape)).dtype != q.dtype:
                    raise AnswerError(f"it returned {out.dtype}; q is {q.dtype}")
                if max(made.sizes, default=0) > 2 * block:
                    raise AnswerError(
                        f"it made a tensor of {max(made.sizes):,} bytes; more than two blocks, "
                        f"{2 * block:,} bytes, are not allowed: K or V was gathered, or the whole "
                        "cache was converted"
                    )
                outs.append(out)
            return torch.stack(outs)

        return STAGES["paged_online"].run(case, as_stage)

    return [
        Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=ATTEND_MEANINGS.get(case.name, case.meaning),
            run=partial(run, case),
            references={"the oracle": case.expected},
            bounds=bounds_of(case.id),
            axes=case.axes,
            problem=case,
        )
        for case in (reseeded(CASES[f"decode/{name}"], draw) for name in ATTEND_CASES)
    ]


# 3. ---------------------------------------------------------------------------------------------


def single_queries(
    block_tables: Tensor, seq_lens: Tensor, query_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """New tokens of many sequences, as sequences that have one query each.

    block_tables  [num_seqs, width] int32
    seq_lens      [num_seqs] int32   tokens of each sequence, the new ones included
    query_lens    [num_seqs] int32   how many of them are new, 1 or more: the last ones
    returns       block_tables [num_queries, width] int32, seq_lens [num_queries] int32;
                  one row for each new token, in the order of sequences, then of positions
    """
    # 1. at which positions are the new tokens of a sequence?
    # 2. the token at a position sees itself and all tokens before it: how many are these?
    # 3. its K and V lie in the blocks of its sequence, whatever its position
    ### BEGIN SOLUTION
    tables, lens = [], []
    sequences = zip(block_tables, seq_lens.tolist(), query_lens.tolist(), strict=True)
    for table, seq_len, new in sequences:
        for position in range(seq_len - new, seq_len):
            tables.append(table)
            lens.append(position + 1)
    return torch.stack(tables), torch.tensor(lens, dtype=torch.int32)
    ### END SOLUTION


_LAST = "The new tokens are the last ones: positions seq_len - query_len to seq_len - 1."
_CAUSAL = "Each token sees the tokens up to its own position p: that is a seq_len of p + 1."
QUERY_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, seq_lens, query_lens,
    # by hand: sequence and seq_len of each query
    ("decode_step", "one new token in each sequence", _LAST, (11, 3, 8), (1, 1, 1),
     [(0, 11), (1, 3), (2, 8)]),
    ("first_token", "one sequence of one token", _CAUSAL, (1,), (1,), [(0, 1)]),
    ("prompt", "a whole prompt", _CAUSAL, (5,), (5,), [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]),
    ("chunk", "3 new tokens on top of {} in the cache", _LAST, (11,), (3,),
     [(0, 9), (0, 10), (0, 11)]),
    ("two_chunks", "two chunks of the same size", "All queries of a sequence stand together.",
     (6, 12), (2, 2), [(0, 5), (0, 6), (1, 11), (1, 12)]),
    ("mixed", "a decode step, a prompt, a chunk", "Each sequence has its own query_len.",
     (7, 3, 9), (1, 3, 2), [(0, 7), (1, 1), (1, 2), (1, 3), (2, 8), (2, 9)]),
)  # fmt: skip


def _query_cases(draw: int) -> list[tuple]:
    """With more tokens in the cache, where there are any: the seq_lens by hand grow as much."""
    rng, cases = seeded(0, draw), []
    for name, isolates, meaning, seq_lens, query_lens, by_hand in QUERY_CASES:
        old = [seq_len - new for seq_len, new in zip(seq_lens, query_lens, strict=True)]
        more = [int(rng.integers(1, 30)) if draw and cached else 0 for cached in old]
        seq_lens = tuple(map(sum, zip(seq_lens, more, strict=True)))
        by_hand = [(sequence, seq_len + more[sequence]) for sequence, seq_len in by_hand]
        words = isolates.format(old[0] + more[0])
        cases.append((name, words, meaning, seq_lens, query_lens, by_hand))
    return cases


def single_queries_trials(draw: int = 0) -> list[Trial]:
    def inputs_of(seq_lens: tuple[int, ...], query_lens: tuple[int, ...]) -> list[Tensor]:
        tables = torch.arange(len(seq_lens) * 3) * 5 % 16  # numbers in no order
        if draw:
            tables = torch.tensor(new_names(seeded(1, draw), 16, 100, len(tables)))
        tables = tables.reshape(-1, 3)
        return [torch.as_tensor(t, dtype=torch.int32) for t in (tables, seq_lens, query_lens)]

    def run(case: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = single_queries if function is None else function
        *lens, by_hand = case
        own, before = inputs_of(*lens), inputs_of(*lens)
        result = require_written(answer(*own))
        if not all(map(torch.equal, own, before)):
            raise AnswerError("it changed one of its arguments; it must only read them")
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise AnswerError("it must return two tensors, block_tables and seq_lens")
        for tensor, shape in zip(result, ([len(by_hand), 3], [len(by_hand)]), strict=True):
            if require_shape(tensor, shape).dtype != torch.int32:
                raise AnswerError(f"it returned {tensor.dtype}; both tensors must be int32")
        return {"out": torch.cat([result[1][:, None], result[0]], dim=1)}

    def expected(case: tuple) -> dict[str, Tensor]:
        *lens, by_hand = case
        tables = inputs_of(*lens)[0].tolist()
        return {"out": torch.tensor([[seq_len, *tables[s]] for s, seq_len in by_hand])}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, case),
            references={"the queries, by hand": partial(expected, case)},
            bounds={"out": 0.0},
            axes=("query", "its seq_len|its block 0|its block 1|its block 2"),
        )
        for name, isolates, meaning, *case in _query_cases(draw)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="**Your turn.** Which slots of a block hold a token? One or two lines.",
        solution=slots_with_token,
        trials=slots_with_token_trials,
        is_warm_up=True,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Section 1 for all heads of one sequence, of any length. K and V of the sequence must "
        "never be in one tensor: the check measures every tensor that torch makes, and none may "
        "be larger than two blocks.",
        solution=attend_sequence,
        trials=attend_sequence_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="A decode step has one query for each sequence; a prompt has many. But each new "
        "token is the newest one of a shorter sequence, which lies in the same blocks. Make these "
        "sequences: a function for decode can then do prefill, and the causal mask needs no code.",
        solution=single_queries,
        trials=single_queries_trials,
    ),
)
