"""Exercises of notebook 13: the blocks dealt out to shares, exp for a vector."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.cpu_kernel_grading import other_lens, other_x
from pa_tutorial.exercises.drawing import redrawn, seeded
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


# 2. ---------------------------------------------------------------------------------------------


def exp_of_many(x: np.ndarray) -> np.ndarray:
    """e**x for every number of x, in steps that a vector unit can do.

    x        [n] float32, 0 or less; -inf may be among them
    returns  [n] float32, within 1e-5 of the right value, relatively; exactly 0 below -87

    e**x = 2**n * e**r, with n whole and |r| <= ln(2) / 2. Allowed is plain arithmetic, floor,
    maximum and where, all in float32; np.exp and np.power are not.
    """
    # 1. -inf has no n: put -87 in the place of what is below it, and remember where
    # 2. y = x / ln(2), n = floor(y + 1/2), r = (y - n) * ln(2); np.float32(…) around constants
    # 3. e**r = 1 + r + r**2 / 2! + …, up to r**7 / 7!. From the last term inwards (Horner's rule)
    # 4. 2**n: the float32 with the bits (n + 127) << 23, as int32; view makes a float32 of it
    ### BEGIN SOLUTION
    f = np.float32
    small = x < f(-87)
    y = np.maximum(x, f(-87)) * f(1.4426950408889634)
    n = np.floor(y + f(0.5))
    r = (y - n) * f(0.6931471805599453)
    e_r = np.ones_like(r)
    for k in range(7, 0, -1):
        e_r = e_r * r * f(1 / k) + f(1)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    return np.where(small, f(0), e_r * power)
    ### END SOLUTION


class PlainNumbers(np.ndarray):
    """An array that refuses the functions that would be the answer already."""

    REFUSED = ("exp", "exp2", "expm1", "power", "float_power", "ldexp", "sinh", "cosh", "tanh")

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: object, **options: object):
        if function.__name__ in self.REFUSED:
            raise AnswerError(f"it calls np.{function.__name__}; plain arithmetic is allowed")
        plain = [np.asarray(x) if isinstance(x, PlainNumbers) else x for x in inputs]
        if "out" in options:
            options["out"] = tuple(map(np.asarray, options["out"]))
        result = getattr(function, method)(*plain, **options)
        return result.view(PlainNumbers) if isinstance(result, np.ndarray) else result


_ONE = "e**0 is 1."
_ROUND = "n is y, rounded to the nearest: then |r| is at most ln(2) / 2, and 8 terms are enough."
_LEAST = "Below -87, and for -inf, the result is 0, exactly."
EXP_CASES = (
    # name, what it isolates, what its failure means, x
    ("zero", "x = 0", _ONE, (0.0, -0.0)),
    ("near_zero", "0 to -0.34: n is 0", _ROUND, np.linspace(-0.34, 0, 50)),
    ("wide", "0 to -87", _ROUND, np.linspace(-87, 0, 1000)),
    ("below", "less than -87", _LEAST, (-87.5, -100.0, -1e4, -1e30)),
    ("empty_slots", "-inf, as behind the last token", _LEAST, (-np.inf, -1.0, -np.inf)),
)  # fmt: skip


def require_array(result: object, shape: Sequence[int]) -> np.ndarray:
    """What an answer returned, if it is a float32 array of that shape."""
    if not isinstance(require_written(result), np.ndarray):
        raise AnswerError(f"it returned a {type(result).__name__}; it must return a NumPy array")
    if result.shape != tuple(shape) or result.dtype != np.float32:
        raise AnswerError(
            f"it returned {list(result.shape)} of {result.dtype}; "
            f"it must return {list(shape)} of float32"
        )
    return np.asarray(result)


def exp_of_many_trials(draw: int = 0) -> list[Trial]:
    def exact(x: np.ndarray) -> np.ndarray:
        """[n, 1] float64: each number is judged by itself."""
        return np.where(x < -87, 0.0, np.exp(x.astype(np.float64)))[:, None]

    def run(x: np.ndarray, function: Callable | None) -> dict[str, np.ndarray]:
        answer = exp_of_many if function is None else function
        with np.errstate(invalid="raise"):  # NumPy would only warn
            result = answer(x.copy().view(PlainNumbers))
        out = require_array(result, x.shape)
        if out[x < -87].any():
            raise AnswerError("below -87 it returned another number than 0")
        return {"out": out[:, None]}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, x),
            references={"e**x in float64": lambda x=x: {"out": exact(x)}},
            bounds={"out": 1e-5},
            axes=("number", "value"),
        )
        for place, (name, isolates, meaning, numbers) in enumerate(EXP_CASES)
        for x in [np.array(other_x(seeded(place, draw), name) if draw else numbers, np.float32)]
    ]


EXP = Exercise(
    text="""\
Write `exp` for a whole array, in NumPy, in steps that a vector unit can do: no loop over the
numbers and no branch. All in float32.""",
    solution=exp_of_many,
    cases=exp_of_many_trials,
)

EXERCISES = (DEAL, EXP)
