"""Exercises of notebook 17: one rank's part of a layer, the merge, where a token is written."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.attention.full import causal_attention
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.distributed_grading import Meeting, on_ranks, other_slots
from pa_tutorial.exercises.drawing import redrawn, seeded_torch
from pa_tutorial.exercises.exercise import Exercise, require_shape
from pa_tutorial.walk.calls import AnswerError

NOTEBOOK = "17_many_devices"
CLOSE = 1e-5  # relative; float32 sums in another order


# 1. ---------------------------------------------------------------------------------------------


def part_of_layer(
    hidden: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    num_heads: int,
    num_kv_heads: int,
    rank: int,
    num_ranks: int,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """One rank's part of an attention layer: summed over all ranks, they are the whole layer.

    hidden    [num_tokens, hidden_size]   the same on every rank
    w_q       [num_heads * head_size, hidden_size]
    w_k, w_v  [num_kv_heads * head_size, hidden_size]
    w_out     [hidden_size, num_heads * head_size]
    attend    attend(q, k, v): causal attention of some heads; q, k, v and the result are
              [num_tokens, heads, head_size], and q may have more heads than k and v
    returns   [num_tokens, hidden_size]

    All weights are as nn.Linear keeps them (x @ w.T). A rank has consecutive heads. num_ranks
    divides num_heads; it divides num_kv_heads, or num_kv_heads divides it.
    """
    # 1. which query heads are this rank's? Which KV heads do they read?
    # 2. q, k and v of these heads: some rows of w_q, w_k and w_v
    # 3. attention
    # 4. which part of w_out meets the numbers of these heads?
    ### BEGIN SOLUTION
    head_size = len(w_q) // num_heads
    per_rank = num_heads // num_ranks
    kv_per_rank = max(1, num_kv_heads // num_ranks)
    first = rank * per_rank
    kv_first = rank * num_kv_heads // num_ranks
    own = slice(first * head_size, (first + per_rank) * head_size)
    own_kv = slice(kv_first * head_size, (kv_first + kv_per_rank) * head_size)
    q, k, v = (
        (hidden @ w.T).unflatten(-1, (-1, head_size)) for w in (w_q[own], w_k[own_kv], w_v[own_kv])
    )
    out = attend(q, k, v)
    return out.flatten(-2) @ w_out[:, own].T
    ### END SOLUTION


_ROWS = "q, k and v come from rows of their weights, out goes into columns of w_out."
_OWN = "The weights of other ranks' heads are NaN here: a rank does not have them."
_SHARED = "Query heads that share a KV head need it on every rank that has one of them."
LAYER_CASES = (
    # name, what it isolates, what its failure means, (num_heads, num_kv_heads, num_ranks)
    ("one_rank", "one rank has everything", _ROWS, (4, 4, 1)),
    ("two_ranks", "two ranks, two heads each", _OWN, (4, 4, 2)),
    ("one_head_each", "four ranks, one head each", _OWN, (4, 4, 4)),
    ("gqa", "query heads in pairs, KV heads divided", _SHARED, (8, 4, 2)),
    ("gqa_one_each", "as many ranks as KV heads", _SHARED, (8, 2, 2)),
    ("replicated", "two ranks need the same KV head", _SHARED, (8, 2, 4)),
    ("mqa", "all ranks need the one KV head", _SHARED, (6, 1, 3)),
)


def layer_weights(num_heads: int, num_kv_heads: int, draw: int) -> dict[str, Tensor]:
    random = seeded_torch(17, draw)
    hidden_size, head_size = 24, 8
    sizes = {
        "hidden": (5, hidden_size),
        "w_q": (num_heads * head_size, hidden_size),
        "w_k": (num_kv_heads * head_size, hidden_size),
        "w_v": (num_kv_heads * head_size, hidden_size),
        "w_out": (hidden_size, num_heads * head_size),
    }
    return {name: torch.randn(size, generator=random) / 3 for name, size in sizes.items()}


def as_rank_has_them(
    weights: dict[str, Tensor], num_heads: int, num_kv_heads: int, rank: int, num_ranks: int
) -> dict[str, Tensor]:
    """NaN where a weight belongs to heads of other ranks only."""
    is_own = torch.arange(num_heads) * num_ranks // num_heads == rank
    is_own_kv = is_own.unflatten(0, (num_kv_heads, -1)).any(dim=1)
    found = {"hidden": weights["hidden"].clone()}
    for name, is_mine in (("w_q", is_own), ("w_k", is_own_kv), ("w_v", is_own_kv)):
        rows = is_mine.repeat_interleave(8)[:, None]
        found[name] = weights[name].where(rows, torch.nan)
    found["w_out"] = weights["w_out"].where(is_own.repeat_interleave(8), torch.nan)
    return found


def whole_layer(num_heads: int, num_kv_heads: int, draw: int) -> Tensor:
    """In float64, without ranks."""
    w = {n: tensor.double() for n, tensor in layer_weights(num_heads, num_kv_heads, draw).items()}
    q, k, v = ((w["hidden"] @ w[name].T).unflatten(-1, (-1, 8)) for name in ("w_q", "w_k", "w_v"))
    k, v = (x.repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (k, v))
    qk = torch.einsum("ihd,jhd->hij", q, k) * 8**-0.5
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    weights = qk.masked_fill(mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v).flatten(-2) @ w["w_out"].T


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_attention(q, k, v, q.shape[-1] ** -0.5)


def part_of_layer_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple[int, int, int], function: Callable | None) -> dict[str, Tensor]:
        answer = part_of_layer if function is None else function
        num_heads, num_kv_heads, num_ranks = sizes
        weights = layer_weights(num_heads, num_kv_heads, draw)
        parts = []
        for rank in range(num_ranks):
            own = as_rank_has_them(weights, num_heads, num_kv_heads, rank, num_ranks)
            sizes_of_rank = num_heads, num_kv_heads, rank, num_ranks
            part = answer(*own.values(), *sizes_of_rank, attend)
            parts.append(require_shape(part, list(weights["hidden"].shape)))
        return {"out": torch.stack(parts).sum(dim=0)}  # this sum is the all-reduce

    return [
        Trial(
            *words,
            run=partial(run, sizes),
            references={"the whole layer": lambda s=sizes: {"out": whole_layer(*s[:2], draw)}},
            bounds={"out": CLOSE},
            axes=("token", "dim"),
        )
        for *words, sizes in LAYER_CASES
    ]


LAYER = Exercise(
    notebook=NOTEBOOK,
    text="""\
Tensor parallelism by hand: what one rank computes in an attention layer. The grader plays all
ranks and adds their parts; this sum is the all-reduce. Each rank gets the weights with NaN in place
of all that belongs to other ranks.""",
    solution=part_of_layer,
    trials=part_of_layer_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def merge_over_network(
    m: Tensor,
    l: Tensor,
    acc: Tensor,
    all_max: Callable[[Tensor], Tensor],
    all_sum: Callable[[Tensor], Tensor],
) -> Tensor:
    """The output of attention, on every rank, from what each rank has computed of its own tokens.

    m        [num_seqs, num_heads]             the largest score of this rank's tokens; -inf if
                                               it has none
    l        [num_seqs, num_heads]             the sum of exp(score - m); 0 if it has none
    acc      [num_seqs, num_heads, head_size]  the sum of exp(score - m) * v; 0 if it has none
    all_max  all_max(x): the largest of all ranks' x, element by element, on every rank
    all_sum  all_sum(x): the sum of all ranks' x
    returns  [num_seqs, num_heads, head_size]

    Every rank calls this, and must make the same calls. Of every sequence, some rank has a token.
    For each head, at most 2 + head_size numbers may go into the network.
    """
    # 1. the common maximum
    # 2. what this rank's l and acc would be below that maximum
    # 3. sums over all ranks; the division comes last
    ### BEGIN SOLUTION
    common = all_max(m)
    rescale = torch.exp(m - common)
    l = all_sum(l * rescale)
    acc = all_sum(acc * rescale[..., None])
    return acc / l[..., None]
    ### END SOLUTION


_WEIGHTS = "A part counts from its own maximum: bring it to the common one, l and acc alike."
_NOTHING = "A rank without tokens has m = -inf, l = 0: its l must not divide anything."
_LAST = "Sum first, divide last: the mean of outputs is not the output."
MERGE_CASES = (
    # name, what it isolates, what its failure means, tokens of each rank, by sequence, spread
    ("one_rank", "one rank has all tokens", _LAST, ((7, 3),), 1.0),
    ("equal_shares", "two ranks, as many tokens each", _WEIGHTS, ((8, 8), (8, 8)), 1.0),
    ("other_lengths", "three ranks, different numbers of tokens", _LAST, ((9, 2), (1, 5), (4, 7)),
     1.0),
    ("no_tokens", "a rank that holds no block", _NOTHING, ((6, 4), (0, 0), (3, 1)), 1.0),
    ("none_of_one", "a rank has tokens of one sequence only", _NOTHING,
     ((6, 0), (0, 3), (2, 2), (0, 0)), 1.0),
    ("far_apart", "maxima hundreds apart", _WEIGHTS, ((5, 5), (5, 5)), 300.0),
    ("four_ranks", "four ranks, sharp scores", _WEIGHTS, ((3, 8),) * 4, 20.0),
)  # fmt: skip
MERGE_HEADS, MERGE_SIZE = 3, 8


def scores_and_values(
    shares: Sequence[Sequence[int]], spread: float, draw: int
) -> list[list[tuple[Tensor, Tensor]]]:
    """[rank][sequence] -> scores [num_heads, tokens], v [tokens, head_size], float64."""
    random = seeded_torch(len(shares), draw)

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, generator=random, dtype=torch.float64)

    def scores(tokens: int) -> Tensor:
        drawn = spread * numbers(MERGE_HEADS, tokens)
        # multiples of 1/1024, so that float32 holds a maximum exactly, also one of hundreds
        return (drawn * 1024).round() / 1024 if draw else drawn

    return [[(scores(tokens), numbers(tokens, MERGE_SIZE)) for tokens in share] for share in shares]


def part_of_rank(tokens: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """m, l, acc of one rank's tokens, float32."""
    ms, ls, accs = [], [], []
    for qk, v in tokens:
        m = torch.full((MERGE_HEADS,), float("-inf"), dtype=torch.float64)
        m = qk.amax(dim=-1) if qk.shape[-1] else m
        weights = torch.exp(qk - m[:, None])
        ms.append(m)
        ls.append(weights.sum(dim=-1))
        accs.append(weights @ v)
    return tuple(torch.stack(parts).float() for parts in (ms, ls, accs))


def merge_trials(draw: int = 0) -> list[Trial]:
    def run(shares: tuple, spread: float, function: Callable | None) -> dict[str, Tensor]:
        answer = merge_over_network if function is None else function
        drawn = scores_and_values(shares, spread, draw)

        def work(rank: int, meeting: Meeting) -> Tensor:
            calls = (partial(meeting.all_reduce, rank, name) for name in ("all_max", "all_sum"))
            shape = [len(shares[0]), MERGE_HEADS, MERGE_SIZE]
            return require_shape(answer(*part_of_rank(drawn[rank]), *calls), shape)

        outs, meeting = on_ranks(len(shares), work)
        most = len(shares[0]) * MERGE_HEADS * (2 + MERGE_SIZE)
        if max(meeting.numbers) > most:
            raise AnswerError(
                f"a rank put {max(meeting.numbers)} numbers into the network; {most} are enough"
            )
        return {"out": torch.stack(outs)}

    def expected(shares: tuple, spread: float) -> dict[str, Tensor]:
        drawn = scores_and_values(shares, spread, draw)
        outs = []
        for sequence in range(len(shares[0])):
            qk = torch.cat([tokens[sequence][0] for tokens in drawn], dim=-1)
            v = torch.cat([tokens[sequence][1] for tokens in drawn])
            outs.append(qk.softmax(dim=-1) @ v)
        return {"out": torch.stack(outs).expand(len(shares), -1, -1, -1)}

    return [
        Trial(
            *words,
            run=partial(run, shares, spread),
            references={"softmax over all tokens": partial(expected, shares, spread)},
            bounds={"out": CLOSE},
            axes=("rank", "sequence", "head", "dim"),
        )
        for *words, shares, spread in MERGE_CASES
    ]


MERGE = Exercise(
    notebook=NOTEBOOK,
    text="""\
The merge over the network. The grader plays all ranks at the same time, as threads. Some ranks have
no token of a sequence, and some have none at all.""",
    solution=merge_over_network,
    trials=merge_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def own_slots(
    positions: Tensor, own_table: Tensor, block_size: int, rank: int, num_ranks: int
) -> Tensor:
    """Where one rank writes K and V of new tokens, when blocks are dealt out to the ranks in turn.

    positions  [num_tokens] int64   of the new tokens in their sequence
    own_table  [num_own_blocks]     the numbers, in this rank's own pool, of the blocks that it has
                                    of this sequence, in the order of the sequence; padded with 0,
                                    and at least one number, also if the rank has no block
    returns    [num_tokens] int64   the slot in this rank's pool; -1 for a token that lives on
                                    another rank, which reshape_and_cache skips
    """
    # 1. in which logical block is each token? Which rank has that block?
    # 2. the how many-th of this rank's blocks is it?
    # 3. slot = block number * block_size + offset
    ### BEGIN SOLUTION
    block_idx = positions // block_size
    is_own = block_idx % num_ranks == rank
    column = (block_idx // num_ranks).where(is_own, 0)
    slots = own_table.long()[column] * block_size + positions % block_size
    return slots.where(is_own, -1)
    ### END SOLUTION


_TURN = "Logical block b is on rank b % num_ranks, and there it is block b // num_ranks."
_SKIP = "A token of another rank gets -1: a slot that is not this rank's own would be overwritten."
_OFFSET = "The offset in the block is that of the token: it does not depend on the ranks."
SLOT_CASES = (
    # name, what it isolates, what its failure means, (positions, own_tables, block_size)
    ("one_rank", "one rank: the slots of notebook 04", _OFFSET, (range(0, 11), ([5, 2],), 8)),
    ("prompt", "a prompt over two ranks", _TURN, (range(0, 29), ([1, 2], [2, 1]), 8)),
    ("decode", "one new token", _SKIP, (range(28, 29), ([1, 2], [2, 1]), 8)),
    ("chunk", "a part in the middle", _TURN, (range(13, 50), ([4, 1, 6], [3, 7, 2], [9, 5, 0]), 8)),
    ("no_block", "a rank that has no block", _SKIP, (range(0, 9), ([3], [8], [0], [0]), 8)),
    ("four_ranks", "blocks of 16 over four ranks", _TURN,
     (range(40, 200), ([2, 9, 4, 7], [5, 1, 3, 8], [6, 2, 9, 1], [7, 3, 5, 0]), 16)),
)  # fmt: skip


def own_slots_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = own_slots if function is None else function
        positions, tables, block_size = sizes
        rows = []
        for rank, table in enumerate(tables):
            new = torch.tensor(list(positions))
            own_table = torch.tensor(table, dtype=torch.int32)
            slots = answer(new, own_table, block_size, rank, len(tables))
            rows.append(require_shape(slots, [len(positions)]).double())
        return {"out": torch.stack(rows)}

    def expected(sizes: tuple) -> dict[str, Tensor]:
        """Deal the blocks out like cards, and look where each token came to lie."""
        positions, tables, block_size = sizes
        place: dict[int, tuple[int, int]] = {}
        hands = [list(table) for table in tables]
        for block_idx in range(positions[-1] // block_size + 1):
            rank = block_idx % len(tables)
            number = hands[rank].pop(0)
            for offset in range(block_size):
                place[block_idx * block_size + offset] = rank, number * block_size + offset
        rows = torch.full((len(tables), len(positions)), -1.0, dtype=torch.float64)
        for column, position in enumerate(positions):
            rank, slot = place[position]
            rows[rank, column] = slot
        return {"out": rows}

    return [
        Trial(
            *words,
            run=partial(run, sizes),
            references={"blocks dealt like cards": partial(expected, sizes)},
            bounds={"out": 0.0},
            axes=("rank", "token"),
        )
        for *words, sizes in redrawn(SLOT_CASES, draw, other_slots)
    ]


SLOTS = Exercise(
    notebook=NOTEBOOK,
    text="""\
`deal_out` copies blocks out of a whole cache. An engine has no whole cache: every rank must know
where a new token goes, or that it is not its own. With this function, `reshape_and_cache` serves a
context-parallel cache as it is.""",
    solution=own_slots,
    trials=own_slots_trials,
)

EXERCISES = (LAYER, MERGE, SLOTS)
