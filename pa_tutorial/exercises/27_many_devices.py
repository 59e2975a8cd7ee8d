"""Exercises of notebook 27: a rank's KV heads, its part of a layer, its slots."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.full import causal_attention
from pa_tutorial.checks.calls import AnswerError, Function
from pa_tutorial.distributed.heads import heads_of
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, in_words, require_shape, require_tensor
from pa_tutorial.exercises.random_inputs import seeded_torch


# 1. ---------------------------------------------------------------------------------------------
def kv_heads_of_rank(rank: int, num_ranks: int, num_kv_heads: int) -> range:
    """The KV heads that a rank holds. num_ranks divides num_kv_heads, or the other way round."""
    # how many (at least one), and starting with which?
    ### BEGIN SOLUTION
    count = max(1, num_kv_heads // num_ranks)
    first = rank * num_kv_heads // num_ranks
    return range(first, first + count)
    ### END SOLUTION


_SHARES = "Equal shares, in order: rank 0 has the first KV heads."
_REPEATED = "If there are more ranks than KV heads, neighbouring ranks hold the same one."
HEAD_CASES = (
    # name, what it isolates, what its failure means, num_kv_heads, num_ranks
    ("one_rank", "one rank has all", _SHARES, 4, 1),
    ("shares", "several KV heads on each rank", _SHARES, 8, 2),
    ("one_each", "as many ranks as KV heads", _SHARES, 4, 4),
    ("repeated", "more ranks than KV heads", _REPEATED, 2, 4),
    ("mqa", "all ranks need the one KV head", _REPEATED, 1, 3),
)


def larger(rng: np.random.Generator, _: str, *sizes: int) -> tuple:
    times = int(rng.integers(2, 7))
    return None, *(size if size == 1 else size * times for size in sizes)


def ranges(num_kv_heads: int, num_ranks: int) -> list[range]:
    sizes = num_ranks, num_kv_heads * num_ranks, num_kv_heads
    return [heads_of(rank, *sizes)[1] for rank in range(num_ranks)]


def heads_run(answer: Function, num_kv_heads: int, num_ranks: int) -> Tensor:
    found = []
    for call in heads_calls(num_kv_heads, num_ranks):
        heads = called(answer, *call)
        if not isinstance(heads, range) or not heads:
            words = in_words("kv_heads_of_rank", call)
            raise AnswerError(
                f"{words} is {heads!r:.60}; it must be a range of one KV head or more"
            )
        found.append([heads[0], heads[-1], len(heads)])
    return torch.tensor(found).double()


def heads_calls(num_kv_heads: int, num_ranks: int) -> list[tuple[int, int, int]]:
    return [(rank, num_ranks, num_kv_heads) for rank in range(num_ranks)]


def heads_of_the_package(num_kv_heads: int, num_ranks: int) -> Tensor:
    """[num_ranks, 3]: the first, the last, and how many."""
    every = ranges(num_kv_heads, num_ranks)
    return torch.tensor([[heads[0], heads[-1], len(heads)] for heads in every]).double()


def heads_axes(*sizes: int) -> tuple[str, str]:
    calls = (in_words("kv_heads_of_rank", call) for call in heads_calls(*sizes))
    return "|".join(calls) + "|", "its first KV head|its last KV head|the number of KV heads"


KV_HEADS = Exercise(
    solution=kv_heads_of_rank,
    cases=graded(HEAD_CASES, heads_run, heads_of_the_package, heads_axes, larger),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
def part_of_layer(
    hidden: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    heads: range,
    kv_heads: range,
    head_size: int,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """One rank's part of an attention layer; the sum over all ranks is the layer's output.

    hidden    [num_tokens, hidden_size]   the same on every rank
    w_q       [num_heads * head_size, hidden_size]
    w_k, w_v  [num_kv_heads * head_size, hidden_size]
    w_out     [hidden_size, num_heads * head_size]
    heads, kv_heads  this rank's heads
    attend    attend(q, k, v): causal attention for some heads; q, k, v and the result are
              [num_tokens, heads, head_size], and q may have more heads than k and v
    returns   [num_tokens, hidden_size]

    All weights are stored as in nn.Linear: x @ w.T.
    """
    # q, k and v of this rank's heads: which of the weights do they need?
    # attention, with one axis for the heads
    # this rank's terms of each output: which weights of w_out multiply what it has?
    ### BEGIN SOLUTION
    own = slice(heads.start * head_size, heads.stop * head_size)
    own_kv = slice(kv_heads.start * head_size, kv_heads.stop * head_size)
    q, k, v = (
        (hidden @ w.T).unflatten(-1, (-1, head_size)) for w in (w_q[own], w_k[own_kv], w_v[own_kv])
    )
    return attend(q, k, v).flatten(-2) @ w_out[:, own].T
    ### END SOLUTION


_ALL = "One rank has all heads, so look at axes, arguments and sums, not at slices."
_OWN = "The weights of other ranks' heads are NaN here, because a rank doesn't have them."
LAYER_CASES = (
    # name, what it isolates, what its failure means, num_heads, num_kv_heads, num_ranks
    ("one_rank", "one rank has everything", _ALL, 4, 4, 1),
    ("two_ranks", "two ranks, two heads each", _OWN, 4, 4, 2),
    ("gqa", "two query heads per KV head, KV heads divided", _OWN, 8, 4, 2),
    ("repeated", "two ranks need the same KV head", _OWN, 8, 2, 4),
    ("mqa", "all ranks need the one KV head", _OWN, 6, 1, 3),
)
HIDDEN_SIZE, HEAD_SIZE = 24, 8
attend = partial(causal_attention, scale=HEAD_SIZE**-0.5)


def attend_own(heads: range, kv_heads: range, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one rank, whose cache has no room for other heads."""
    for name, given, own in (("q", q, heads), ("k", k, kv_heads), ("v", v, kv_heads)):
        if given.dim() == 3 and given.shape[1] != len(own):
            found = f"attend got {name} with {given.shape[1]} heads"
            raise AnswerError(f"{found}; on this rank, {name} has {len(own)}")
    return attend(q, k, v)


def require_own_weights(part: Tensor, hidden: Tensor) -> None:
    """Weights of other heads show in the gradient even if the answer dropped what it computed with
    them, because 0 · NaN is NaN."""
    if not part.requires_grad or not part.isfinite().all():
        return
    (gradient,) = torch.autograd.grad(part.sum(), hidden)
    if gradient.isnan().any():
        found = "it computed with other ranks' weights and dropped the result"
        raise AnswerError(f"{found}; a rank has only the weights of its own heads")


def layer(num_heads: int, num_kv_heads: int, draw: int) -> list[Tensor]:
    """hidden, w_q, w_k, w_v, and w_out with one row per element of a head."""
    random = seeded_torch(17, draw)
    rows = 5, *(n * HEAD_SIZE for n in (num_heads, num_kv_heads, num_kv_heads, num_heads))
    return [torch.randn(n, HIDDEN_SIZE, generator=random) / 3 for n in rows]


def layer_run(
    answer: Function, num_heads: int, num_kv_heads: int, num_ranks: int, draw: int
) -> Tensor:
    parts = []
    for rank in range(num_ranks):
        own = heads, kv_heads = heads_of(rank, num_ranks, num_heads, num_kv_heads)
        hidden, *weights = layer(num_heads, num_kv_heads, draw)
        for weight, some in zip(weights, (heads, kv_heads, kv_heads, heads), strict=True):
            weight[: some.start * HEAD_SIZE] = torch.nan
            weight[some.stop * HEAD_SIZE :] = torch.nan
        *weights, w_out = weights
        hidden.requires_grad_()
        part = answer(hidden, *weights, w_out.T, *own, HEAD_SIZE, partial(attend_own, *own))
        require_own_weights(require_shape(part, [len(hidden), HIDDEN_SIZE]), hidden)
        parts.append(part.detach())
    return torch.stack(parts).sum(dim=0)  # this sum is the all-reduce


def whole_layer(num_heads: int, num_kv_heads: int, _num_ranks: int, draw: int) -> Tensor:
    hidden, *weights, w_out = layer(num_heads, num_kv_heads, draw)
    q, k, v = ((hidden @ w.T).unflatten(-1, (-1, HEAD_SIZE)) for w in weights)
    return attend(q, k, v).flatten(-2) @ w_out


LAYER = Exercise(
    solution=part_of_layer,
    cases=graded(LAYER_CASES, layer_run, whole_layer, ("token", "dim"), bound=1e-05),
    is_warm_up=True,
)


# 3. ---------------------------------------------------------------------------------------------
def own_slots(
    positions: Tensor, own_table: Tensor, block_size: int, rank: int, num_ranks: int
) -> Tensor:
    """Where one rank writes K and V of new tokens if blocks are dealt out to the ranks in turn.

    positions  [num_tokens] int64      positions of the new tokens in their sequence
    own_table  [num_own_blocks] int32  this rank's blocks of the sequence, in order, as numbers in
                                       its own pool; [0] if it has none
    returns    [num_tokens] int64      the slot in this rank's pool, or -1 for a token on another
                                       rank, which reshape_and_cache skips
    """
    # which logical block is each token in, and which rank has that block?
    # how many blocks of the sequence did this rank get before it?
    # the slot, as on one device; what do the tokens of other ranks get?
    ### BEGIN SOLUTION
    block_idx = positions // block_size
    is_own = block_idx % num_ranks == rank
    column = (block_idx // num_ranks).where(is_own, 0)
    slots = own_table.long()[column] * block_size + positions % block_size
    return slots.where(is_own, -1)
    ### END SOLUTION


_TABLE = "With one rank, own_table is the whole table: block number times block size, plus offset."
_PROMPT = "Rank 0 has logical blocks 0 and 2, rank 1 has 1 and 3; tokens of other blocks get -1."
_LAST = "Position 28 is in logical block 3, the second block of rank 1; on rank 0, it gets -1."
_FEWER = "Of seven blocks, rank 0 has 0, 3 and 6; the others have two, so look up only own blocks."
_NONE = "Ranks 2 and 3 have no block of this sequence, so every token gets -1 there."
SLOT_CASES = (
    # name, what it isolates, what its failure means, range of positions, block_size, tables
    ("one_rank", "one rank, as in slot_mapping", _TABLE, (0, 11), 8, ([5, 2],)),
    ("prompt", "a prompt over two ranks", _PROMPT, (0, 29), 8, ([1, 2], [2, 1])),
    ("decode", "one new token", _LAST, (28, 29), 8, ([1, 2], [2, 1])),
    ("chunk", "ranks with more and fewer blocks", _FEWER, (13, 50), 8, ([4, 1, 6], [3, 7], [9, 5])),
    ("no_block", "a rank that has no block", _NONE, (0, 9), 8, ([3], [8], [0], [0])),
)


def renumbered(rng: np.random.Generator, _: str, *case: Any) -> tuple:
    """The same blocks with other numbers; a rank without a block still has [0]."""
    *span_and_size, tables = case
    numbers = iter(3 + rng.permutation(57))
    others = [t if t == [0] else [int(next(numbers)) for _ in t] for t in tables]
    return None, *span_and_size, tuple(others)


def slots_run(answer: Function, span: tuple, size: int, tables: tuple) -> Tensor:
    new, rows = torch.arange(*span), []
    for rank, table in enumerate(tables):
        slots = answer(new.clone(), torch.tensor(table, dtype=torch.int32), size, rank, len(tables))
        rows.append(require_tensor(slots, new).double())
    return torch.stack(rows)


def slots_dealt_by_hand(span: tuple, size: int, tables: tuple) -> Tensor:
    """Deal the slots of all blocks out like cards, then take those for the new tokens."""
    slots = torch.full((len(tables), span[1] + size), -1.0, dtype=torch.float64)
    hands = [iter(table) for table in tables]
    for block_idx, first in enumerate(range(0, span[1], size)):
        rank = block_idx % len(tables)
        slots[rank, first : first + size] = next(hands[rank]) * size + torch.arange(size)
    return slots[:, slice(*span)]


SLOTS = Exercise(
    solution=own_slots,
    cases=graded(SLOT_CASES, slots_run, slots_dealt_by_hand, ("rank", "token"), renumbered),
    is_warm_up=True,
)


EXERCISES = (KV_HEADS, LAYER, SLOTS)
