"""Grade the tasks in plain Python: the borders of a window, and the shared memory of a launch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.calls import require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.grading import whole_numbers
from pa_tutorial.exercises.window.kernel_cases import drawing
from pa_tutorial.kernels.geometry import FLOAT_BYTES, Geometry

ROUNDS = 6  # how often each case is drawn
Round = tuple[int, int, int]  # length of a sequence, window, block size


def numbers_trials(
    cases: tuple[tuple, ...],
    draw: int,
    call: Callable[[Callable, Round], list[int]],
    expected: Callable[[Round], list[int]],
    axes: tuple[str, str],
) -> list[Trial]:
    """Trials whose results are whole numbers.

    cases     (name, what it isolates, what its failure means, of) each, where of(n, block size)
              draws the length of a sequence and a window
    call      what an answer returns for a round
    axes      a round and a number, in words
    """

    def as_tensor(of_round: Callable[[Round], list[int]], rounds: list[Round]) -> dict[str, Tensor]:
        return {"out": torch.tensor([of_round(one) for one in rounds])}

    def trial(number: int, name: str, isolates: str, meaning: str, of: Callable) -> Trial:
        _, n = drawing(draw, number)
        sizes = [(8, 16, 32)[n(0, 2)] for _ in range(ROUNDS)]
        rounds = [(*of(n, size), size) for size in sizes]
        return Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=lambda answer: as_tensor(partial(call, answer), rounds),
            references={"a count, one by one": partial(as_tensor, expected, rounds)},
            bounds={"out": 0.0},
            axes=("|".join(axes[0].format(*one) for one in rounds), axes[1]),
        )

    return [trial(number, *case) for number, case in enumerate(cases)]


# blocks_in_window ------------------------------------------------------------------------------

_FIRST = "The newest query is at seq_len - 1 and sees itself: the first is seq_len - window."
_END = "The window ends with the sequence, whose last block counts even if it isn't full."
_START = "The first block is the one that contains the first token, so round down."
BORDERS = (
    ("one_token", "a window of one token", _FIRST,
     lambda n, b: (b * n(1, 6) + n(1, b), 1)),
    ("inside_a_block", "the window begins inside a block", _START,
     lambda n, b: ((w := n(2, 3 * b)) + b * n(1, 6) + n(1, b - 2), w)),
    ("at_a_border", "the window begins with a block", _START,
     lambda n, b: ((w := n(2, 3 * b)) + b * n(1, 6), w)),
    ("full_last_block", "the sequence ends with a full block", _END,
     lambda n, b: (b * n(4, 9), n(2, 3 * b))),
    ("short_sequence", "the window is larger than the sequence, or as large",
     "The window begins at token 0, never before it, and ends with the sequence.",
     lambda n, b: ((s := n(1, 5 * b)), s + n(0, b))),
    ("no_window", "window = 0: all tokens are seen", "0 means no window.",
     lambda n, b: (n(2, 9 * b), 0)),
)  # fmt: skip


def blocks_in_window_trials(draw: int = 0) -> list[Trial]:
    def call(answer: Callable, one: Round) -> list[int]:
        return whole_numbers(answer(*one), 3)

    axes = "blocks_in_window({}, {}, {})", "first_token_idx|start_block_idx|end_block_idx"
    return numbers_trials(BORDERS, draw, call, borders, axes)


def borders(one: Round) -> list[int]:
    """Computed by checking for every token whether it is seen."""
    seq_len, window, block_size = one
    seen = [t for t in range(seq_len) if window == 0 or seq_len - 1 - t < window]
    blocks = [t // block_size for t in seen]
    return [seen[0], min(blocks), max(blocks) + 1]


# shared_bytes ----------------------------------------------------------------------------------

_TOUCHED = "W tokens touch the most blocks if the first one is the last token of its block."
_ALL = "A sequence has ceil(max_seq_len / BLOCK_SIZE) blocks; a larger window doesn't add any."
_SUMS = "At the end, half the warps each store HEAD_SIZE float32 in the same memory."
MUCH = 40  # blocks; more than the sums of rows of V need in these cases' geometry
SHARED = (
    ("whole_blocks", "a window of whole blocks", _TOUCHED,
     lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90))),
    ("one_more", "a window of one token more than whole blocks", _TOUCHED,
     lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90) + 1)),
    ("two_more", "a window of two tokens more than whole blocks", _TOUCHED,
     lambda n, b: (b * n(200, 300) + n(0, b), b * n(MUCH, 90) + 2)),
    ("short_sequences", "the window is about as large as the longest sequence", _ALL,
     lambda n, b: ((s := b * n(MUCH, 60) + n(1, b)), s + n(-1, 3 * b))),
    ("sums_of_v", "a few tokens only: the sums of rows of V need more", _SUMS,
     lambda n, b: (b * n(200, 300), n(1, 2))),
    ("no_window", "window = 0: all logits", "0 means no window.",
     lambda n, b: (b * n(200, 300) + n(0, b), 0)),
)  # fmt: skip


def shared_bytes_trials(draw: int = 0) -> list[Trial]:
    def call(answer: Callable, one: Round) -> list[int]:
        length, window, block_size = one
        found = answer(geometry_of(block_size), length, window)
        return whole_numbers([require_written(found)], 1)

    axes = "shared_bytes(geometry of blocks of {2}, {0}, {1})", "what it returns|"
    return numbers_trials(SHARED, draw, call, least_bytes, axes)


def geometry_of(block_size: int) -> Geometry:
    return Geometry(head_size=128, block_size=block_size, num_threads=64)


def least_bytes(one: Round) -> list[int]:
    """Computed by counting the blocks of the window for every possible sequence."""
    longest, window, block_size = one
    blocks = (
        (length - 1) // block_size + 1 - max(length - (window or length), 0) // block_size
        for length in range(1, longest + 1)
    )
    logits = max(blocks) * block_size * FLOAT_BYTES
    geometry = geometry_of(block_size)
    return [max(logits, geometry.NUM_WARPS // 2 * geometry.HEAD_SIZE * FLOAT_BYTES)]
