"""Grading of what is plain Python: the borders of a window, and the shared memory of a launch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import index
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window.cases import BLOCK, Case, Windows, problems
from pa_tutorial.coursework.window.files import solved
from pa_tutorial.coursework.window.grading import loads_of, require_kernel, window_trial
from pa_tutorial.coursework.window.problem import WindowProblem
from pa_tutorial.kernels.geometry import FLOAT_BYTES, Geometry
from pa_tutorial.kernels.prepare import PagedBackend
from pa_tutorial.simt.simulate import MAX_SHARED
from pa_tutorial.walk.calls import AnswerError, require_written

Draw = Callable[[int, int], int]  # draw(a, b): one of a, a + 1, …, b
ROUNDS = 6  # how often each case of numbers is drawn


class Numbers(NamedTuple):
    """A case of whole numbers: draw, block size -> (length of a sequence, window)."""

    name: str
    isolates: str
    meaning: str
    of: Callable[[Draw, int], tuple[int, int]]


def drawn(cases: tuple[Numbers, ...], draw: int) -> list[tuple[Numbers, list[tuple[int, ...]]]]:
    """With each case its rounds: (length, window, block size)."""
    found = []
    for number, case in enumerate(cases):
        rng = np.random.default_rng((draw, number))

        def one(a: int, b: int, rng: np.random.Generator = rng) -> int:
            return int(rng.integers(a, b + 1))

        sizes = [(8, 16, 32)[one(0, 2)] for _ in range(ROUNDS)]
        found.append((case, [(*case.of(one, size), size) for size in sizes]))
    return found


def numbers_trials(
    cases: tuple[Numbers, ...],
    draw: int,
    row: Callable[..., list[int]],
    expected: Callable[[list[tuple[int, ...]]], dict[str, Tensor]],
    call: str,
    names: str,
) -> list[Trial]:
    """row: (answer, *round) -> what it returned. call, names: of a round and of a row, in words."""

    def run(rounds: list[tuple[int, ...]], answer: object) -> dict[str, Tensor]:
        return {"out": torch.tensor([row(answer, *one) for one in rounds])}

    return [
        Trial(
            name=case.name,
            isolates=case.isolates,
            meaning=case.meaning,
            run=partial(run, rounds),
            references={"a count, one by one": partial(expected, rounds)},
            bounds={"out": 0.0},
            axes=("|".join(call.format(*one) for one in rounds), names),
        )
        for case, rounds in drawn(cases, draw)
    ]


def as_numbers(result: object, count: int) -> list[int]:
    """So many whole numbers; AnswerError if it is something else."""
    try:
        numbers = [index(require_written(number)) for number in require_written(result)]
    except TypeError:
        numbers = []
    if len(numbers) != count:
        raise AnswerError(f"it returned {result!r:.60}; it must return {count} whole numbers")
    return numbers


# blocks_in_window ------------------------------------------------------------------------------

_FIRST = "The newest query stands at seq_len - 1 and sees itself: it begins at seq_len - window."
_END = "The end is that of the sequence: its last block counts, full or not."
_START = "The first block is the one in which the first token lives: rounded down."
BORDERS = (
    Numbers("one_token", "a window of one token", _FIRST,
            lambda n, b: (b * n(1, 6) + n(1, b), 1)),
    Numbers("inside_a_block", "the window begins inside a block", _START,
            lambda n, b: ((w := n(2, 3 * b)) + b * n(1, 6) + n(1, b - 2), w)),
    Numbers("at_a_border", "the window begins with a block", _START,
            lambda n, b: ((w := n(2, 3 * b)) + b * n(1, 6), w)),
    Numbers("one_more_than_a_border", "one token of the first block is seen", _START,
            lambda n, b: ((w := n(2, 3 * b)) + b * n(1, 6) - 1, w)),
    Numbers("full_last_block", "the sequence ends with a full block", _END,
            lambda n, b: (b * n(4, 9), n(2, 3 * b))),
    Numbers("short_sequence", "the window is larger than the sequence, or as large",
            "It begins at token 0, never before; and ends with the last block of the sequence.",
            lambda n, b: ((s := n(1, 5 * b)), s + n(0, b))),
    Numbers("no_window", "window = 0: all tokens are seen", "0 stands for no window.",
            lambda n, b: (n(2, 9 * b), 0)),
)  # fmt: skip


def blocks_in_window_trials(draw: int = 0) -> list[Trial]:
    def row(answer: Callable | None, *arguments: int) -> list[int]:
        found = solved("blocks_in_window", answer)(*arguments)
        return as_numbers(found, 3)

    names = "first_token_idx|start_block_idx|end_block_idx"
    return numbers_trials(BORDERS, draw, row, borders, "blocks_in_window({}, {}, {})", names)


def borders(rounds: list[tuple[int, ...]]) -> dict[str, Tensor]:
    """[rounds, 3] by asking every token whether it is seen."""
    rows = []
    for seq_len, window, block_size in rounds:
        seen = [t for t in range(seq_len) if window == 0 or seq_len - 1 - t < window]
        blocks = [t // block_size for t in seen]
        rows.append((seen[0], min(blocks), max(blocks) + 1))
    return {"out": torch.tensor(rows)}


# shared_bytes ----------------------------------------------------------------------------------

_TOUCHED = "W tokens touch most blocks when the first of them is the last token of its block."
_ALL = "A sequence has ceil(max_seq_len / BLOCK_SIZE) blocks; a larger window does not add any."
_SUMS = "At the end half of the warps leave HEAD_SIZE float32 each in the same memory."
_INDEX = (
    "Logit 0 must be that of the first slot of the first block that is seen, not of token 0; or "
    "there is too little memory: see the cases above."
)
MUCH = 40  # blocks: more than the sums of rows of V need, in the geometry of these cases
SHARED = (
    Numbers("whole_blocks", "a window of whole blocks", _TOUCHED,
            lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90))),
    Numbers("one_more", "a window of one token more than whole blocks", _TOUCHED,
            lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90) + 1)),
    Numbers("two_more", "a window of two tokens more than whole blocks", _TOUCHED,
            lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90) + 2)),
    Numbers("short_sequences", "the window is about as large as the longest sequence", _ALL,
            lambda n, b: ((s := b * n(MUCH, 60) + n(1, b)), s + n(-1, 3 * b))),
    Numbers("sums_of_v", "a few tokens only: the sums of rows of V need more", _SUMS,
            lambda n, b: (b * n(200, 300), n(1, 2))),
    Numbers("no_window", "window = 0: all logits", "0 stands for no window.",
            lambda n, b: (b * n(200, 300) + n(0, b), 0)),
)  # fmt: skip
LONG = (
    Case("long_context", "a launch whose context would never fit without the window", _INDEX,
         lambda n: Windows(BLOCK * n(4, 7), (BLOCK * n(1, 3) + n(1, 7), BLOCK * n(1, 2))), {}),
    Case("most_blocks", "a launch of windows that touch as many blocks as they can", _INDEX,
         lambda n: Windows(BLOCK * n(9, 11) + 2, (BLOCK * n(1, 3) - 1, BLOCK * n(1, 2) + 3)), {}),
    Case("few_tokens", "a launch of a small window, over the border of two blocks", _INDEX,
         lambda n: Windows(n(3, 7), (BLOCK * n(1, 3) - n(1, 2), BLOCK * n(1, 2))), {}),
    Case("four_warps", "a launch of four warps, each with several blocks", _INDEX,
         lambda n: Windows(BLOCK * n(9, 11) + 2, (BLOCK * n(1, 3) - 1, BLOCK * n(1, 2) + 3)),
         {"num_threads": 128}),
    Case("vectors_float16", "a launch in float16, with vecs of 16 bytes", _INDEX,
         lambda n: Windows(BLOCK * n(9, 11) + 2, (BLOCK * n(1, 3) - 1, BLOCK * n(1, 2) + 3)),
         {"dtype": torch.float16, "vectors": True}),
)  # fmt: skip


def shared_bytes_trials(draw: int = 0) -> list[Trial]:
    def row(answer: tuple | None, length: int, window: int, size: int) -> list[int]:
        function, _ = solved("shared_bytes", answer)
        return as_numbers([function(geometry_of(size), length, window)], 1)

    call = "shared_bytes(geometry of blocks of {2}, {0}, {1})"
    plain = numbers_trials(SHARED, draw, row, least_bytes, call, "what it returns|")
    return plain + [window_trial("shared_bytes", step, long_out) for step in problems(LONG, draw)]


def geometry_of(block_size: int) -> Geometry:
    return Geometry(head_size=128, block_size=block_size, num_threads=64)


def least_bytes(rounds: list[tuple[int, ...]]) -> dict[str, Tensor]:
    """[rounds, 1] by counting the blocks of the window of every sequence that there may be."""
    rows = []
    for longest, window, block_size in rounds:
        blocks = (
            (length - 1) // block_size + 1 - max(length - (window or length), 0) // block_size
            for length in range(1, longest + 1)
        )
        logits = max(blocks) * block_size * FLOAT_BYTES
        geometry = geometry_of(block_size)
        rows.append([max(logits, geometry.NUM_WARPS // 2 * geometry.HEAD_SIZE * FLOAT_BYTES)])
    return {"out": torch.tensor(rows)}


def long_out(problem: WindowProblem, answer: tuple[Callable, Callable]) -> Tensor:
    """The step with so many blocks in front of every sequence that their logits would not fit."""
    shared_bytes, paged_attention = answer
    inputs = problem.paged("vllm")
    in_front = MAX_SHARED // (FLOAT_BYTES * problem.block_size) + 1
    tables = inputs.block_tables
    gone = torch.zeros(len(tables), in_front, dtype=tables.dtype)
    seq_lens = inputs.seq_lens + in_front * problem.block_size
    # Lengths of 1, until it is known how much shared memory there will be.
    short = torch.ones_like(seq_lens)
    step = replace(inputs, block_tables=torch.cat([gone, tables], dim=1), seq_lens=short)
    loads = loads_of(problem)
    prepared = PagedBackend(loads).prepare(step, num_threads=problem.num_threads)
    asked = shared_bytes(prepared.geometry, int(seq_lens.max()), problem.window)
    kernel = paged_attention(prepared.geometry, loads, problem.window)
    launch = replace(
        prepared,
        kernel=require_kernel(kernel),
        shared_bytes=as_numbers([asked], 1)[0],
        arguments=prepared.arguments | {"seq_lens": seq_lens},
    )
    launch.simulate()
    return launch.out
