"""The exercise of notebook 23: deal the blocks out to shares."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.cpu_kernel_grading import other_lens
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.random_inputs import redrawn

# 1. ---------------------------------------------------------------------------------------------


def deal_out(
    seq_lens: Sequence[int], block_size: int, num_shares: int
) -> list[list[tuple[int, int, int]]]:
    """Cut the blocks of a batch into shares of consecutive blocks, as equal as possible.

    Line up all blocks of the batch: first sequence 0's, then sequence 1's, …
    Share i starts at block i * num_blocks // num_shares of this line, and ends where the next
    share starts.

    returns  for each share a list of its partitions: (sequence, start_block_idx, end_block_idx).
             Indices count within the sequence; the end is exclusive. A share without blocks is
             an empty list.
    """
    # 1. how many blocks does each sequence have? Where in the line does each start?
    # 2. where in the line does a share start and end?
    # 3. which sequences does it touch? Cut each at the share's start and end
    ### BEGIN SOLUTION
    num_blocks = [-(-seq_len // block_size) for seq_len in seq_lens]
    total = sum(num_blocks)
    shares = []
    for share in range(num_shares):
        start, end = share * total // num_shares, (share + 1) * total // num_shares
        partitions, first = [], 0
        for seq, count in enumerate(num_blocks):
            a, b = max(start, first), min(end, first + count)
            if a < b:
                partitions.append((seq, a - first, b - first))
            first += count
        shares.append(partitions)
    return shares
    ### END SOLUTION


_CUT = "A sequence may be spread over several shares, and a share may hold several sequences."
_COUNT = "Count blocks, not tokens; a last block that isn't full counts as one."
_EMPTY = "A partition has at least one block; a share may have no partition."
DEAL_CASES = (
    # name, what it isolates, what a failure means, (seq_lens, block_size, num_shares)
    ("cut_inside", "three sequences for two shares", _CUT, ((64, 160, 32), 16, 2)),
    ("cut_between", "a share ends where a sequence ends", _EMPTY, ((32, 32, 64), 16, 2)),
    ("tails", "last blocks with one token", _COUNT, ((17, 1, 33, 49), 16, 3)),
    ("long_and_short", "a sequence over several shares", _CUT, ((5, 400, 9, 3), 8, 4)),
    ("many_shares", "more shares than blocks", _EMPTY, ((20, 3), 8, 7)),
)  # fmt: skip


def dealt_by_hand(seq_lens: Sequence[int], block_size: int, num_shares: int) -> Tensor:
    """[num_shares, num_seqs, 2]: start and end, or 0 and 0 without blocks; one block at a time."""
    row = [(s, b) for s, n in enumerate(seq_lens) for b in range(-(-n // block_size))]
    result = torch.zeros(num_shares, len(seq_lens), 2, dtype=torch.int64)
    for share in range(num_shares):
        own = row[share * len(row) // num_shares : (share + 1) * len(row) // num_shares]
        for seq, blocks in groupby(own, key=lambda place: place[0]):
            indices = [block for _, block in blocks]
            result[share, seq] = torch.tensor((indices[0], indices[-1] + 1))
    return result


def as_shares(result: object, num_seqs: int, num_shares: int) -> Tensor:
    """The answer in the same form; raises AnswerError if it doesn't have the right shape."""
    shares = require_written(result)
    if not isinstance(shares, list | tuple) or len(shares) != num_shares:
        raise AnswerError(f"it must return a list with one list per share, {num_shares} in all")
    found = torch.zeros(num_shares, num_seqs, 2, dtype=torch.int64)
    for share, partitions in enumerate(shares):
        if not isinstance(partitions, list | tuple):
            raise AnswerError(f"share {share} is {partitions!r:.60}; it must be a list")
        for partition in partitions:
            of_ints = isinstance(partition, tuple | list) and all(
                type(number) is int for number in partition
            )
            if not of_ints or len(partition) != 3 or not 0 <= partition[0] < num_seqs:
                raise AnswerError(
                    f"share {share} has {partition!r:.60}; it must be three ints: "
                    f"(sequence, start_block_idx, end_block_idx), the sequence below {num_seqs}"
                )
            seq, start, end = partition
            if start >= end:
                raise AnswerError(f"share {share} has {partition}, which holds no block")
            if found[share, seq].any():
                raise AnswerError(f"share {share} names sequence {seq} twice")
            found[share, seq] = torch.tensor((start, end))
    return found


def deal_out_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = deal_out if function is None else function
        return {"out": as_shares(answer(list(sizes[0]), *sizes[1:]), len(sizes[0]), sizes[2])}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, sizes),
            references={
                "dealt out block by block": lambda sizes=sizes: {"out": dealt_by_hand(*sizes)}
            },
            bounds={"out": 0.0},
            axes=("share", "sequence", "start_block_idx|end_block_idx"),
        )
        for name, isolates, meaning, sizes in redrawn(DEAL_CASES, draw, other_lens)
    ]


DEAL = Exercise(
    solution=deal_out,
    cases=deal_out_trials,
)


EXERCISES = (DEAL,)
