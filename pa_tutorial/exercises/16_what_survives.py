"""Exercises of notebook 16: a table without padding, a merge, attention over a latent cache."""

from functools import partial
from itertools import accumulate, chain

import torch
from torch import Tensor

from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.calls import AnswerError, Function, require_written
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded, on_steps, require_shape
from pa_tutorial.exercises.random_inputs import seeded_torch

CLOSE = 1e-5  # relative; float32 sums in another order


# 1. ---------------------------------------------------------------------------------------------
def to_pages(
    block_tables: Tensor, seq_lens: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The block tables of a batch without padding; every sequence has at least one token.

    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32
    returns       kv_indptr [num_seqs + 1], kv_indices [pages of the batch],
                  kv_last_page_len [num_seqs]
    """
    num_pages = -(-seq_lens // page_size)
    ### BEGIN SOLUTION
    kv_indptr = torch.cat([num_pages.new_zeros(1), num_pages.cumsum(0)])
    kv_indices = torch.cat([row[:n] for row, n in zip(block_tables, num_pages, strict=True)])
    return kv_indptr, kv_indices, seq_lens - (num_pages - 1) * page_size
    ### END SOLUTION


_PAGES = "List a sequence's blocks without padding; its last page holds 1 to page_size tokens."
PAGE_CASES = (
    *("one_token", "one_full_block", "tail", "wide_tables", "block_zero_in_use"),
    "many_sequences_of_different_length",
)


def pages_run(answer: Function, case: DecodeProblem) -> Tensor:
    step = case.paged("plain")
    found = require_written(answer(step.block_tables, step.seq_lens, case.block_size))
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise AnswerError("it must return kv_indptr, kv_indices and kv_last_page_len")
    num_seqs, num_pages = len(case.seq_lens), sum(map(len, case.block_tables()[0]))
    sizes = num_seqs + 1, num_pages, num_seqs
    return torch.cat([require_shape(x, [n]) for x, n in zip(found, sizes, strict=True)])


def pages_by_hand(case: DecodeProblem) -> Tensor:
    tables, _ = case.block_tables()
    begins = accumulate(map(len, tables), initial=0)
    lasts = [(seq_len - 1) % case.block_size + 1 for seq_len in case.seq_lens]
    return torch.tensor([*begins, *chain.from_iterable(tables), *lasts])


PAGES = Exercise(
    solution=to_pages,
    cases=on_steps(
        PAGE_CASES, pages_run, pages_by_hand, ("place",), 0.0, dict.fromkeys(PAGE_CASES, _PAGES)
    ),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
def merge_by_lse(lse: Tensor, out: Tensor) -> Tensor:
    """The output over all tokens, from what attention over each part of them returned.

    lse      [num_heads, num_parts]             m + log l of each part
    out      [num_heads, num_parts, head_size]
    returns  [num_heads, head_size]
    """
    # 1. each part's share of the weights, from the LSEs of its head alone; they may be large
    # 2. the sum of the outputs, each times its part's share
    ### BEGIN SOLUTION
    shares = lse.softmax(dim=-1)
    return (shares[..., None] * out).sum(dim=-2)
    ### END SOLUTION


_SHARES = "A part's weight is l exp(m), which is exp(LSE), over the sum of all parts'."
MERGE_CASES = (  # tokens of each part, and the size of the scores
    ("equal_parts", "four parts of as many tokens", _SHARES, (4, 4, 4, 4), 1.0, 0),
    ("one_part", "a single part: the output is its own", _SHARES, (5,), 1.0, 1),
    ("unequal_parts", "parts of different lengths", _SHARES, (16, 1, 7), 1.0, 2),
    ("large_scores", "scores near 1,000, 500 and 0, by head",
     "exp of a large LSE overflows, and a head knows nothing of another's.", (3, 9), 1000.0, 3),
)  # fmt: skip


def parts_of_scores(sizes: tuple[int, ...], size: float, seed: int, draw: int = 0) -> list[Tensor]:
    """Scores [num_heads, num_tokens] and values [num_tokens, head_size], float64."""
    random, num_tokens = seeded_torch(seed, draw), sum(sizes)
    scores = torch.randn(3, num_tokens, generator=random, dtype=torch.float64)
    scores += size * torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)[:, None]
    return [scores, torch.randn(num_tokens, 5, generator=random, dtype=torch.float64)]


def merge_run(answer: Function, sizes: tuple[int, ...], *numbers: float) -> Tensor:
    scores, values = parts_of_scores(sizes, *numbers)
    parts = [*zip(scores.split(sizes, dim=1), values.split(sizes), strict=True)]
    lse = torch.stack([qk.logsumexp(dim=1) for qk, _ in parts], dim=1)
    out = torch.stack([qk.softmax(dim=1) @ v for qk, v in parts], dim=1)
    merged = require_written(answer(lse.float(), out.float()))
    return require_shape(merged, [3, 5])


def softmax_over_all_tokens(sizes: tuple[int, ...], *numbers: float) -> Tensor:
    scores, values = parts_of_scores(sizes, *numbers)
    return scores.softmax(dim=1) @ values


MERGE = Exercise(
    solution=merge_by_lse,
    cases=graded(MERGE_CASES, merge_run, softmax_over_all_tokens, ("head", "element"), bound=1e-3),
    is_warm_up=True,
)


# 3. ---------------------------------------------------------------------------------------------
def attend_latent(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
) -> Tensor:
    """One decode step over a latent cache in blocks, absorbed: K and V are never made.

    q             [num_seqs, num_heads, k_size + position_size]
    cache         [num_blocks, block_size, latent_size + position_size], NaN in empty slots
    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32
    w_k           [num_heads, k_size, latent_size]
    w_v           [num_heads, v_size, latent_size]
    returns       [num_seqs, num_heads, v_size]
    """
    # 1. multiply the first k_size elements of q by w_k, so that they match the latents
    # 2. for each sequence: gather its vectors from its blocks, only the first seq_len
    # 3. scores from both parts of a vector, times scale; softmax over the tokens
    # 4. each head's weighted mean of the latents, then w_v
    ### BEGIN SOLUTION
    k_size, latent_size = w_k.shape[1:]
    q = torch.cat([torch.einsum("shk,hkc->shc", q[..., :k_size], w_k), q[..., k_size:]], dim=-1)
    outs = []
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        rows = cache[block_tables[sequence].long()].flatten(0, 1)[:seq_len]
        weights = (scale * q[sequence] @ rows.T).softmax(dim=-1)
        outs.append(weights @ rows[:, :latent_size])
    return torch.einsum("shc,hvc->shv", torch.stack(outs), w_v)
    ### END SOLUTION


_TABLE = "block_tables[s] lists the blocks of sequence s, in order."
_TAIL = "Only the first seq_len vectors count, the rest are NaN; w_v comes after the mean."
_SCORES = "Scores use both parts of a vector, times scale; the softmax is over the tokens."
_MOVE = "Apply w_k to the query; apply w_v after the mean, head by head."
# One KV head, whose keys are the cached vectors: head_size is latent_size + POSITION.
POSITION = 8
_latent = partial(DecodeProblem, num_kv_heads=1, head_size=32, block_size=8)
LATENT_CASES = (
    _latent("one_token", "a sequence of one token: the output is its value", _TAIL, seq_lens=(1,)),
    _latent("tail", "the last block is not full", _SCORES, seq_lens=(13,)),
    _latent("many", "sequences of different lengths", _TABLE, seq_lens=(13, 1, 30, 8)),
    _latent("other_sizes", "other head and block sizes", _MOVE, seq_lens=(11, 6), num_heads=3,
            head_size=28, block_size=4),
    _latent("never_expanded", "no tensor as large as K of all heads",
            "Attend to the cached vectors; don't compute the heads' K or V.", seq_lens=(300, 17),
            num_heads=16),
)  # fmt: skip


def latent_inputs(case: DecodeProblem) -> dict[str, Tensor]:
    """The arguments of attend_latent, in their order, float32."""
    step = case.paged("plain")
    random, latent_size = seeded_torch(182, case.seed), case.head_size - POSITION
    k_size = latent_size - 8
    rows = (len(step.q), k_size + POSITION), (k_size, latent_size), (10, latent_size)
    q, w_k, w_v = (torch.randn(case.num_heads, *size, generator=random) for size in rows)
    w_k, w_v = w_k * latent_size**-0.5, w_v * latent_size**-0.5
    q, cache = q.transpose(0, 1).contiguous(), step.k_cache[:, 0].contiguous()
    shared = {"cache": cache, "block_tables": step.block_tables, "seq_lens": step.seq_lens}
    return {"q": q, **shared, "w_k": w_k, "w_v": w_v, "scale": q.shape[-1] ** -0.5}


def k_and_v_of_every_head(case: DecodeProblem) -> Tensor:
    """In float64, from every head's K and V and from the vectors before they went into blocks."""
    inputs = latent_inputs(case)
    q, w_k, w_v = (inputs[name].double() for name in ("q", "w_k", "w_v"))
    outs = []
    for query, rows in zip(q, case.inputs().keys, strict=True):
        c, position = rows[:, 0].double().split([w_k.shape[2], POSITION], dim=1)
        k = torch.cat([c @ w_k.mT, position.expand(len(w_k), -1, -1)], dim=-1)  # [head, token, …]
        scores = inputs["scale"] * (k @ query[..., None])[..., 0]
        outs.append((scores.softmax(dim=-1)[:, None] @ (c @ w_v.mT))[:, 0])
    return torch.stack(outs)


def latent_run(answer: Function, case: DecodeProblem) -> Tensor:
    inputs = latent_inputs(case)
    with TensorsMade() as made:
        out = require_written(answer(*inputs.values()))
    require_shape(out, [len(case.seq_lens), case.num_heads, inputs["w_v"].shape[1]])
    num_heads, k_size, _ = inputs["w_k"].shape
    most, largest = 4 * max(case.seq_lens) * num_heads * k_size, max(made.sizes, default=0)
    if case.name == "never_expanded" and largest >= most:
        raise AnswerError(
            f"it made a tensor of {largest:,} bytes; K of all heads has {most:,}, and "
            "no tensor needs to be that large"
        )
    return out


LATENT = Exercise(
    solution=attend_latent,
    cases=on_steps(
        LATENT_CASES, latent_run, k_and_v_of_every_head, ("sequence", "head", "dim"), bound=CLOSE
    ),
)

EXERCISES = (PAGES, MERGE, LATENT)
