"""Blanks of notebook 06: which slots of a block hold a token, and the loop over blocks."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.calls import AnswerError, checked, require_written, tensors_of
from pa_tutorial.checks.cases import CASES as PROBLEMS
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.grading import bounds_for, graded, require_tensor, require_tensors
from pa_tutorial.exercises.random_inputs import reseeded, seeded_torch

Lens = tuple[int, ...]
Tables = tuple[tuple[int, ...], ...]

# tokens_of_block ----------------------------------------------------------------------------------

TOKENS = (
    # name, what it isolates, what its failure means, block_idx, seq_lens, block_size
    ("the tokens of a full block", "no tail", "", 0, (8,), 8),
    ("tail", "block 1 of the worked example: 3 tokens", "", 1, (11,), 8),
    ("ended", "a full block, a tail, and no block at all", "", 2, (12, 11, 8), 4),
    ("exactly", "a sequence that ends where the block begins", "", 1, (16, 17), 16),
)


def later_blocks(
    rng: np.random.Generator, _: str, block_idx: int, lens: Lens, size: int
) -> tuple[None, int, Lens, int]:
    """Blocks of another size, and more whole blocks at the start of every sequence."""
    more, times = map(int, rng.integers(2, 9, 2))
    longer = tuple(times * (n + more * size) for n in lens)
    return None, block_idx + more, longer, times * size


def run_tokens(pages: Any, block_idx: int, lens: Lens, size: int) -> Tensor:
    result = pages.tokens_of_block(block_idx, torch.tensor(lens, dtype=torch.int32), size)
    like = torch.empty(size, dtype=torch.int64), torch.empty(len(lens), size, dtype=torch.bool)
    token, is_token = require_tensors(result, "token and is_token", like)
    block = range(block_idx * size, (block_idx + 1) * size)
    for slot, (found, right) in enumerate(zip(token.tolist(), block, strict=True)):
        if found != right:
            where = f"slot {slot} of logical block {block_idx}, with {size} slots per block,"
            raise AnswerError(f"{where} is for token {right}; your token says {found}")
    for seq_len, row in zip(lens, is_token.tolist(), strict=True):
        for number, found in zip(block, row, strict=True):
            if found != (number < seq_len):
                has = f"{seq_len} tokens are tokens 0 to {seq_len - 1}"
                raise AnswerError(f"{has}, but for token {number} your is_token is {found}")
    return torch.cat([token[None], is_token]).float()


def tokens_in_order(block_idx: int, _: Lens, size: int) -> Tensor:
    return torch.arange(block_idx * size, (block_idx + 1) * size)


def the_definition(block_idx: int, lens: Lens, size: int) -> Tensor:
    """[1 + num_seqs, block_size]: the token of each slot, then whether each sequence has it."""
    block = range(block_idx * size, (block_idx + 1) * size)
    return torch.tensor([[*block], *([token < n for token in block] for n in lens)]).float()


# A step whose output shows the weights ------------------------------------------------------------

# Three sequences share block 3; the last fills it, and has no second block.
THREE: tuple[Lens, Tables] = (7, 6, 4), ((3, 1), (3, 2), (3,))
LONG: tuple[Lens, Tables] = (23, 18), ((5, 2, 9, 4, 7, 1), (5, 8, 3, 6, 10))
# Lengths as in a prompt, all in the same blocks, one of which is block 0.
PROMPT: tuple[Lens, Tables] = (5, 6, 7, 8), ((2, 0),) * 4
SIZE = 4


def shown_step(lens: Lens, tables: Tables, empty: str, draw: int) -> DecodeStep:
    """One head; V of slot s is 1 in element s, else 0. So out is the weights, one per slot of the
    pool.

    empty  what the slots without a token hold: numbers, NaN in V, or NaN in K and V
    """
    num_slots = (1 + max(map(max, tables))) * SIZE
    drawn = seeded_torch(6, draw)
    q = torch.randn(len(lens), 1, num_slots, generator=drawn)
    k, v = torch.randn(num_slots, num_slots, generator=drawn), torch.eye(num_slots)
    held = {slot for row in slots_of(lens, tables) for slot in row}
    others = [slot for slot in range(num_slots) if slot not in held]
    if "V" in empty:
        v[others] = math.nan
    if "K" in empty:
        k[others] = math.nan
    width = 1 + max(map(len, tables))
    padded = [[*table, *[0] * (width - len(table))] for table in tables]
    return DecodeStep(
        q,
        k.view(-1, 1, SIZE, num_slots),
        v.view(-1, 1, SIZE, num_slots),
        torch.tensor(padded, dtype=torch.int32),
        torch.tensor(lens, dtype=torch.int32),
        scale=num_slots**-0.5,
    )


def slots_of(lens: Lens, tables: Tables) -> list[list[int]]:
    """Of each sequence, those of its tokens, in order."""
    return [
        [table[token // SIZE] * SIZE + token % SIZE for token in range(seq_len)]
        for seq_len, table in zip(lens, tables, strict=True)
    ]


def softmax_over_the_tokens(lens: Lens, tables: Tables, empty: str, draw: int) -> Tensor:
    step = shown_step(lens, tables, empty, draw)
    k = step.k_cache.double().flatten(0, 2)
    weights = torch.zeros(len(lens), len(k), dtype=torch.float64)
    for row, q, own in zip(weights, step.q.double(), slots_of(lens, tables), strict=True):
        row[own] = torch.softmax(step.scale * (k[own] @ q[0]), dim=0)
    return weights


def attended(pages: Any, step: DecodeStep) -> Tensor:
    """The output of a step. AnswerError if K or V was gathered, or an input changed."""
    made = TensorsMade()

    def run() -> Tensor:
        with made:
            out = require_written(pages.paged_attention(**vars(step)))
        if isinstance(out, Tensor) and out.shape != step.q.shape:
            raise AnswerError(
                f"it returned the shape {[*out.shape]}, not {[*step.q.shape]}. {LINE}"
            )
        return require_tensor(out, step.q)

    out = checked(run, tensors_of(**vars(step)))
    num_seqs, num_heads, head_size = step.q.shape
    a_block = num_seqs * num_heads * step.block_size * head_size
    largest = max(made.sizes, default=0) // torch.float32.itemsize
    if largest > 2 * a_block:
        raise AnswerError(
            f"it made a tensor of {largest:,} elements; one block of every sequence has "
            f"{a_block:,}. Was K or V gathered, or the whole cache converted?"
        )
    return out


LINE = "Do the masks, l and q line up with [num_seqs, num_kv_heads, group, …]?"


def run_shown(pages: Any, lens: Lens, tables: Tables, empty: str, draw: int) -> Tensor:
    found = attended(pages, shown_step(lens, tables, empty, draw))[:, 0]
    right = softmax_over_the_tokens(lens, tables, empty, draw)
    for sequence, own in enumerate(slots_of(lens, tables)):
        if words := why_wrong(found[sequence], right[sequence], own, empty):
            raise AnswerError(words.format(name=f"sequence {sequence}"))
    return found


def why_wrong(found: Tensor, right: Tensor, own: list[int], empty: str) -> str:
    """What is wrong with the weights of one sequence, if anything is; {name} is its name.

    found, right  [num_slots]
    own           the slots of its tokens, in order
    """
    if torch.allclose(found.double(), right, atol=1e-5):
        return ""
    if found.isnan().any():
        return NAN[empty]
    for slot in range(len(found)):
        if slot not in own and abs(found[slot]) > 1e-5:
            where = f"slot {slot}, in block {slot // SIZE}, holds no token of {{name}}"
            return f"{where}; its weight should be 0, is {found[slot]:.3f}"
    if missing := [token for token, slot in enumerate(own) if found[slot] == 0]:
        block = own[missing[0]] // SIZE
        why = LOST if block else BLOCK_0
        if len(missing) == len(own):
            return f"no token of {{name}} gets a weight: {INVERTED}"
        return f"token {missing[0]} of {{name}}, in block {block}, gets no weight: {why}"
    ratio = found[own] / right[own]
    if ratio.max() - ratio.min() < 1e-3:
        total = (
            "in {name}, the weights of the tokens add up to " + f"{found[own].sum():.3f}, not to 1"
        )
        return f"{total}: {LEAKED if ratio[0] < 1 else UNDIVIDED}"
    token = int((found[own] - right[own]).abs().gt(1e-5).nonzero()[0])
    slot, weight, wanted = own[token], found[own[token]], right[own[token]]
    where = f"token {token} of {{name}}, in slot {slot} (block {slot // SIZE})"
    why = UNSCALED if is_block_by_block(ratio) else ""
    return f"{where}, should have the weight {wanted:.3f}, has {weight:.3f}{why}"


def is_block_by_block(ratio: Tensor) -> bool:
    """Whether the weights of each logical block are wrong by a factor of their own."""
    return all(part.max() - part.min() < 1e-3 for part in ratio.split(SIZE))


NAN = {
    "numbers": "the output of {name} is NaN, although all that it read are numbers",
    "NaN in V": "the output of {name} is NaN. A slot without a token holds NaN, as in a new cache, "
    "and although its weight is 0, 0 · NaN is NaN: a mask on the scores isn't enough. V needs "
    "cleaning too, and multiplying it by 0 doesn't clean it: replace",
    "NaN in K and V": "the output of {name} is NaN. A slot without a token holds NaN, as in a new "
    "cache, so its score is NaN, and whatever is added to NaN is NaN: replace the score",
}
LEAKED = "slots without a token took the rest, because their scores count"
UNDIVIDED = "is acc divided by l?"
UNSCALED = ". Were the sums of the blocks brought to one maximum?"
LOST = "is its block read, and its part kept?"
BLOCK_0 = "block 0 may hold tokens, too; only seq_lens says where a row of the table ends"
INVERTED = "does the mask fill the slots that hold tokens?"


def drawn_weights(pages: Any, lens: Lens, tables: Tables, empty: str, draw: int) -> Any:
    """The weights, [num_seqs, num_slots]. Where V was cleaned, a weight on a slot without a token
    doesn't show in the output; then it is what the tokens' weights lack."""
    drawn = attended(pages, shown_step(lens, tables, empty, draw))[:, 0]
    right = softmax_over_the_tokens(lens, tables, empty, draw)
    for row, *those in zip(drawn, right, slots_of(lens, tables), tables, strict=True):
        of_tokens, own, table = those
        read = {*table, *[0] * (len(table) < max(map(len, tables)))}
        others = [s for s in range(len(row)) if s // SIZE in read and s not in own]
        if others and is_leak(row, of_tokens, own):
            row[others] = (1 - row[own].sum()) / len(others)
    return drawn


def is_leak(found: Tensor, right: Tensor, own: list[int]) -> bool:
    """Whether all weights are too small by the same factor."""
    ratio = found[own] / right[own]
    return bool(ratio.max() - ratio.min() < 1e-3 and ratio.max() < 1 - 1e-4)


def elements_moved(pages: Any, lens: Lens, tables: Tables, empty: str, draw: int) -> dict[str, int]:
    """Elements of K and V that are loaded from the pool."""
    step = shown_step(lens, tables, empty, draw)
    with TensorsMade(step.k_cache, step.v_cache) as made:
        pages.paged_attention(**vars(step))
    return {"elements moved": made.bytes_read // torch.float32.itemsize}


# paged_attention ----------------------------------------------------------------------------------

SHOWN = (
    # name, what it isolates, what its failure means, seq_lens, block tables, empty
    ("a step on a used cache", "old numbers in slots without a token", "", *THREE, "numbers"),
    ("a step on NaN in V", "NaN in V where there is no token", "", *THREE, "NaN in V"),
    ("a step on a new cache", "NaN in K, too", "", *THREE, "NaN in K and V"),
    ("a step on long sequences", "six blocks", "", *LONG, "NaN in K and V"),
    ("a prompt of which four tokens attend", "block 0 in use", "", *PROMPT, "numbers"),
)
STEPS = ("one_full_block", "one_token", "gqa", "alibi", "drifting_scores")


def steps(names: tuple[str, ...]) -> Callable[[int], list[Trial]]:
    """The same cases as check("paged_online") has, by name; and one in which it would show if the
    whole cache were converted."""
    problems = [PROBLEMS[f"decode/{name}"] for name in names]
    problems.append(replace(PROBLEMS["decode/float16"], seq_lens=(90, 40)))
    cases = [(one.name, one.isolates, one.meaning, one) for one in problems]
    return graded(cases, run_step, the_oracle, DecodeProblem.axes, bound=bound_of)


def run_step(pages: Any, problem: DecodeProblem, draw: int) -> Tensor:
    step = reseeded(problem, draw).paged("plain")
    out = attended(pages, step)
    if step.alibi_slopes is not None:
        without = attended(pages, replace(step, alibi_slopes=None))
        if torch.equal(out, without):
            raise AnswerError(
                "the output is the same with and without alibi_slopes: are they used?"
            )
    return out


def the_oracle(problem: DecodeProblem, draw: int) -> np.ndarray:
    return reseeded(problem, draw).expected()["out"]


def bound_of(problem: DecodeProblem, draw: int) -> float:
    return bounds_for(problem.id, draw)["out"]


SHOWN_TRIALS = graded(
    SHOWN,
    run_shown,
    softmax_over_the_tokens,
    ("sequence", "slot"),
    bound=1e-5,
    drawn=drawn_weights,
    costs=elements_moved,
)
STEP_TRIALS = steps(STEPS)


def trials_of_paged_attention(draw: int) -> list[Trial]:
    return [*SHOWN_TRIALS(draw), *STEP_TRIALS(draw)]


CASES: dict[str, Callable[[int], list[Trial]]] = {
    "tokens_of_block": graded(
        TOKENS,
        run_tokens,
        the_definition,
        ("row", "slot"),
        again=later_blocks,
        goal=(tokens_in_order, ("slot",)),
    ),
    "paged_attention": trials_of_paged_attention,
}
EXERCISES = ()
