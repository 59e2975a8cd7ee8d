"""The exercise of notebook 14: the blocks dealt out to shares."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.cpu_kernel_grading import other_lens
from pa_tutorial.exercises.drawing import redrawn
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.walk.calls import AnswerError, require_written

# 1. ---------------------------------------------------------------------------------------------


def deal_out(
    seq_lens: Sequence[int], block_size: int, num_shares: int
) -> list[list[tuple[int, int, int]]]:
    """Cut the blocks of a batch into shares, each a run of blocks, as equal as can be.

    All blocks of the batch stand in one row: those of sequence 0, then those of sequence 1, …
    Share i starts at place i * num_blocks // num_shares of the row, and ends where the next starts.

    returns  for each share the partitions in it: (sequence, start_block_idx, end_block_idx), the
             end not included, block 0 being the first of the sequence. A share without blocks is
             an empty list.
    """
    # 1. how many blocks has each sequence? At which place of the row does each start?
    # 2. where does a share start and end in the row?
    # 3. which sequences lie between? Cut each where the share starts and where it ends
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


_CUT = "A sequence may lie in several shares, and a share may hold several sequences."
_COUNT = "Blocks are counted, not tokens; a last block that is not full is a block."
_EMPTY = "Only what has blocks is a partition; a share may have none."
DEAL_CASES = (
    # name, what it isolates, what its failure means, (seq_lens, block_size, num_shares)
    ("cut_inside", "three sequences for two shares", _CUT, ((64, 160, 32), 16, 2)),
    ("cut_between", "a share ends where a sequence ends", _EMPTY, ((32, 32, 64), 16, 2)),
    ("tails", "last blocks with one token", _COUNT, ((17, 1, 33, 49), 16, 3)),
    ("long_and_short", "a sequence over several shares", _CUT, ((5, 400, 9, 3), 8, 4)),
    ("many_shares", "more shares than blocks", _EMPTY, ((20, 3), 8, 7)),
)  # fmt: skip


def dealt_by_hand(seq_lens: Sequence[int], block_size: int, num_shares: int) -> Tensor:
    """[num_shares, num_seqs, 2]: start and end, 0 and 0 where there is nothing; block by block."""
    row = [(s, b) for s, n in enumerate(seq_lens) for b in range(-(-n // block_size))]
    result = torch.zeros(num_shares, len(seq_lens), 2, dtype=torch.int64)
    for share in range(num_shares):
        own = row[share * len(row) // num_shares : (share + 1) * len(row) // num_shares]
        for seq, blocks in groupby(own, key=lambda place: place[0]):
            indices = [block for _, block in blocks]
            result[share, seq] = torch.tensor((indices[0], indices[-1] + 1))
    return result


def as_shares(result: object, num_seqs: int, num_shares: int) -> Tensor:
    """The answer in the same form; a message for its author if it is none."""
    shares = require_written(result)
    if not isinstance(shares, list | tuple) or len(shares) != num_shares:
        raise AnswerError(f"it must return a list with a list for each of {num_shares} shares")
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
    text="""\
Deal the blocks of a batch out, in plain Python: which blocks of which sequences has each share?""",
    solution=deal_out,
    cases=deal_out_trials,
)


EXERCISES = (DEAL,)
