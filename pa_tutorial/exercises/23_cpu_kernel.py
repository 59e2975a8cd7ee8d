"""The exercises of notebook 23: read a sequence block by block, deal the blocks out to shares."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import isfunction
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.cpu_kernel_grading import other_lens
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded
from pa_tutorial.exercises.random_inputs import redrawn, seeded

# 1. ---------------------------------------------------------------------------------------------


def attend_sequence(attend_block, query, k_cache, v_cache, table, seq_len, out):
    """Attention of one sequence. Each block is visited once, and finished before the next.

    attend_block      adds some tokens of one KV head of one block to one query head
    query, out        [num_heads, head_size] float32; query is already scaled
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size]
    table             [max_num_blocks_per_seq]  physical block numbers
    """
    num_heads, head_size = query.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    # 1. for every head, the state of an online softmax that has seen no token yet
    # 2. each block of the sequence: how many of its slots hold tokens?
    #    Every head adds these tokens, from the KV head that it shares, to its state
    # 3. after the last block, write every head's output
    ### BEGIN SOLUTION
    accs = np.zeros((num_heads, head_size), np.float32)
    m, l = np.full(num_heads, -np.inf, np.float32), np.zeros(num_heads, np.float32)
    for block_idx in range(-(-seq_len // block_size)):
        k, v = k_cache[table[block_idx]], v_cache[table[block_idx]]
        num_tokens = min(block_size, seq_len - block_idx * block_size)
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            of_head = query[head], k[kv_head], v[kv_head]
            m[head], l[head] = attend_block(*of_head, num_tokens, m[head], l[head], accs[head])
    for head in range(num_heads):
        for d in range(head_size):
            out[head, d] = accs[head, d] / l[head]
    ### END SOLUTION


def attend_block(query, k, v, num_tokens, m, l, accs):
    """The notebook's, in NumPy."""
    qk = k[:num_tokens] @ query
    m_new = max(m, qk.max())
    weights, factor = np.exp(qk - m_new), np.exp(m - m_new)
    accs *= factor
    accs += weights @ v[:num_tokens]
    return m_new, l * factor + weights.sum()


class Visits:
    """Stands for attend_block in plain Python: also checks what it is given, and that each block
    is finished before the next."""

    def __init__(self, k_cache: np.ndarray) -> None:
        self.start = k_cache.ctypes.data
        self.block, self.slots, self.before = k_cache[0].nbytes, k_cache.shape[2:], []

    def __call__(self, query, k, v, num_tokens, m, l, accs):
        for name, array in (("k", k), ("v", v)):
            if np.shape(array) != self.slots:
                raise AnswerError(
                    f"attend_block was given {name} of shape {list(np.shape(array))}; it takes one "
                    f"KV head of one block, [block_size, head_size] = {list(self.slots)}"
                )
        if not 1 <= num_tokens <= self.slots[0]:
            raise AnswerError(
                f"attend_block was given num_tokens = {num_tokens}; in a block of "
                f"{self.slots[0]} there are 1 to {self.slots[0]}"
            )
        block = (k.ctypes.data - self.start) // self.block
        if np.isnan(k[:num_tokens]).any():
            slot = int(np.isnan(k[:num_tokens]).any(axis=1).argmax())
            raise AnswerError(
                f"attend_block was given num_tokens = {num_tokens} for block {block}, whose slot "
                f"{slot} holds no token of the sequence"
            )
        if block in self.before[:-1]:
            raise AnswerError(
                f"it comes back to block {block} after block {self.before[-1]}: let all heads "
                "finish a block before the next begins"
            )
        if self.before[-1:] != [block]:
            self.before.append(block)
        return attend_block(query, k, v, num_tokens, m, l, accs)


_STATE = (
    "Begin with m = -inf, l = 0, accs = 0; keep what attend_block returns; divide by l at the end."
)
_LAST = "The last block holds what is left of seq_len; its other slots are NaN."
_HEADS = "Consecutive query heads share a KV head, and each head has its own m, l and accs."
_TABLE = "The table says where a block is; the last entries belong to no block of the sequence."
_SIMPLE = "Numba takes loops, arithmetic and NumPy; no classes, no lists of mixed types."
SEQUENCE_CASES = (
    # name, what it isolates, what a failure means,
    # (seq_len, num_heads, num_kv_heads, score), compiled
    ("one_block", "one full block", _STATE, (4, 1, 1, 0), False),
    ("low", "scores around -200", _STATE, (8, 1, 1, -200), False),
    ("tail", "a last block that isn't full", _LAST, (11, 1, 1, 0), False),
    ("shuffled_blocks", "five full blocks in shuffled order", _TABLE, (20, 1, 1, 0), False),
    ("heads", "as many KV heads as query heads", _HEADS, (10, 3, 3, 0), False),
    ("gqa", "groups of three query heads", _HEADS, (13, 6, 2, 0), False),
    ("compiled", "the same as machine code", _SIMPLE, (13, 6, 2, 0), True),
)
NOT_WRITTEN = 54321.0  # what out holds before
NUM_BLOCKS, SLOTS, ROW = 7, 4, 8  # of the cache; of a block; of a head


def sequence(sizes: tuple[int, ...], draw: int) -> tuple[np.ndarray, ...]:
    """query, K and V in the plain layout, and the table; NaN in every slot without a token.
    The scores are around sizes[3]."""
    seq_len, num_heads, num_kv_heads, around = sizes
    rng = seeded(seq_len, draw)
    query = rng.standard_normal((num_heads, ROW), np.float32)
    cache = rng.standard_normal((2, NUM_BLOCKS, num_kv_heads, SLOTS, ROW), np.float32)
    query[:, 0], cache[0, ..., 0] = around, 1
    table = rng.permutation(NUM_BLOCKS)
    is_token = np.empty((NUM_BLOCKS, SLOTS), bool)
    is_token[table] = np.arange(NUM_BLOCKS * SLOTS).reshape(NUM_BLOCKS, SLOTS) < seq_len
    cache.swapaxes(2, 3)[:, ~is_token] = np.nan
    return query, *cache, table


def sequence_run(answer: Callable, sizes: tuple, compiled: bool, draw: int) -> Tensor:
    """Run it in Python, where a wrong index is an error, and then see whether Numba takes it."""
    answer = getattr(answer, "py_func", answer)
    query, k_cache, v_cache, table = sequence(sizes, draw)
    out = np.full_like(query, NOT_WRITTEN)
    arguments = query, k_cache, v_cache, table, sizes[0], out
    with np.errstate(all="ignore"):
        returned = answer(Visits(k_cache), *arguments)
    if (out == NOT_WRITTEN).all():
        hint = "not written yet?" if returned is None else "the result belongs there"
        raise AnswerError(f"nothing was written to out: {hint}")
    found = torch.from_numpy(out.copy())
    right = torch.allclose(found.double(), softmax_over_all_tokens(sizes, compiled, draw))
    if compiled and right and isfunction(answer):
        compile_it(answer, *arguments)
    return found


def compile_it(answer: Callable, *arguments: object) -> None:
    from numba import njit
    from numba.core.errors import NumbaError, UnsupportedBytecodeError

    def unchanged(query, k, v, num_tokens, m, l, accs):
        return m, l

    try:
        njit(answer, error_model="numpy")(njit(unchanged), *arguments)
    except (NumbaError, UnsupportedBytecodeError) as error:
        said = [line for line in str(error).splitlines() if line.strip()]
        why = said[said[0].startswith("Failed in")]  # the first line names a step of Numba's
        where = [line.strip(":").rpartition(", ")[2] for line in said if line.startswith("File")]
        raise AnswerError(
            f"Python runs it, but Numba can't compile {where[0] if where else 'it'}: {why}"
        ) from None


def softmax_over_all_tokens(sizes: tuple, compiled: bool, draw: int) -> Tensor:
    seq_len, num_heads, num_kv_heads, _ = sizes
    query, *cache, table = map(torch.from_numpy, sequence(sizes, draw))
    of_heads = (x[table].transpose(0, 1).flatten(1, 2)[:, :seq_len].double() for x in cache)
    k, v = (x.repeat_interleave(num_heads // num_kv_heads, dim=0) for x in of_heads)
    weights = (k @ query[:, :, None].double()).softmax(dim=1)  # [num_heads, seq_len, 1]
    return (weights * v).sum(dim=1)


SEQUENCE = Exercise(
    solution=attend_sequence,
    cases=graded(
        SEQUENCE_CASES, sequence_run, softmax_over_all_tokens, ("head", "element"), bound=1e-4
    ),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------


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
_COUNT = (
    "A share's start in the line is rounded down, so one share may have a block more than another. "
    "Count a last block that isn't full, too."
)
_INSIDE = "Indices count within the sequence, and the end is exclusive."
_EMPTY = "A partition has at least one block; a share may have no partition."
DEAL_CASES = (
    # name, what it isolates, what a failure means, (seq_lens, block_size, num_shares)
    ("cut_inside", "three sequences for two shares", _INSIDE, ((64, 160, 32), 16, 2)),
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
            if found[share, seq:].any():
                raise AnswerError(
                    f"share {share} is {partitions!r:.60}; the sequences must be in the order of "
                    "the line, each at most once"
                )
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


DEAL = Exercise(solution=deal_out, cases=deal_out_trials, is_warm_up=True)


EXERCISES = (SEQUENCE, DEAL)
