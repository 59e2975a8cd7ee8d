"""Exercises of notebook 12: what each thread block reads, and two ways to merge partitions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import redrawn
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernels import ITEM, Enough, Task, trial
from pa_tutorial.exercises.partitions_grading import (
    RANGES,
    another_batch,
    as_ranges,
    left_by,
    made_up_partitions,
    problem,
    ranges_of_kernel,
    require_merged,
    require_registers_only,
)
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.calls import AnswerError
from pa_tutorial.walk.problem import DecodeProblem

NOTEBOOK = "12_partitions"
SIZE = 16  # tokens of a partition, where nothing else is said


# 1. ---------------------------------------------------------------------------------------------


def split_batch(
    seq_lens: Sequence[int], block_size: int, partition_size: int
) -> list[list[tuple[int, int, int, int]]]:
    """Which blocks and tokens each thread block of v2 has, for one head.

    partition_size  a multiple of block_size
    returns         [sequence][partition] -> (start_block_idx, end_block_idx, start_token_idx,
                    end_token_idx), the ends not included. As in the grid, every sequence has the
                    same number of partitions; one that begins after the end of its sequence is
                    (0, 0, 0, 0).
    """
    # 1. how many partitions has the grid? One sequence decides for all
    # 2. how many blocks has a sequence, and how many has a partition?
    # 3. the last partition may be cut off, in blocks and in tokens
    ### BEGIN SOLUTION
    num_partitions = -(-max(seq_lens) // partition_size)
    blocks = partition_size // block_size
    batch = []
    for seq_len in seq_lens:
        num_seq_blocks = -(-seq_len // block_size)
        row = []
        for partition in range(num_partitions):
            start = partition * blocks
            end = min(start + blocks, num_seq_blocks)
            end_token = min(end * block_size, seq_len)
            exists = partition * partition_size < seq_len
            row.append((start, end, start * block_size, end_token) if exists else (0, 0, 0, 0))
        batch.append(row)
    return batch
    ### END SOLUTION


_GRID = (
    "The longest sequence decides how many partitions all of them have; one that begins after the "
    "end of its sequence is (0, 0, 0, 0)."
)
_END = "The last partition ends where the sequence ends: blocks are rounded up, tokens are not."
_NONE = "A partition exists if its first token does: partition * partition_size < seq_len."
SPLIT_CASES = (
    # name, what it isolates, what its failure means, (seq_lens, block size, partition size)
    ("worked_example", "11 tokens in partitions of 8", _END, ((11,), 8, 8)),
    ("two_blocks", "50 tokens: partitions of two blocks", _END, ((50,), 8, 16)),
    ("full", "32 tokens: two partitions, both full", _NONE, ((32,), 8, 16)),
    ("one_more", "33 tokens: a third partition for one token", _END, ((33,), 8, 16)),
    ("mixed_batch", "61, 11, 5 and 16 tokens", _GRID, ((61, 11, 5, 16), 8, 16)),
    ("longest_last", "8, 7 and 49 tokens, blocks of 16", _GRID, ((8, 7, 49), 16, 48)),
)  # fmt: skip


def split_batch_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = split_batch if function is None else function
        num_seqs, num_partitions, _ = ranges_of_kernel(*sizes).shape
        return {"out": as_ranges(answer(list(sizes[0]), *sizes[1:]), num_seqs, num_partitions)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, sizes),
            references={
                "the running kernel": lambda sizes=sizes: {"out": ranges_of_kernel(*sizes)}
            },
            bounds={"out": 0.0},
            axes=("sequence", "partition", "|".join(RANGES)),
        )
        for name, isolates, meaning, sizes in redrawn(SPLIT_CASES, draw, another_batch)
    ]


SPLIT = Exercise(
    notebook=NOTEBOOK,
    text="""\
Which blocks and which tokens has each thread block of a launch? Say it in plain Python, for one
head of a whole batch. The grader runs the kernel and compares your numbers with its variables.""",
    solution=split_batch,
    trials=split_batch_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def merge_partitions(
    exp_sums: Tensor, max_logits: Tensor, tmp_out: Tensor, seq_lens: Tensor, partition_size: int
) -> Tensor:
    """The second half of v2, for the whole batch.

    exp_sums, max_logits  [num_seqs, num_heads, max_num_partitions] float32
    tmp_out               [num_seqs, num_heads, max_num_partitions, head_size] float32
    seq_lens              [num_seqs] int32
    returns               [num_seqs, num_heads, head_size] float32

    Where a sequence has no such partition, the first three hold NaN. The inputs are only read.
    """
    # 1. which partitions exist? A mask that can be broadcast over the heads
    # 2. 0 * NaN is NaN: put something else in the places of the others, in all three tensors
    # 3. M, the largest maximum of each sequence and head; r = exp_sum * exp(max_logit - M)
    # 4. the mean of tmp_out over the partitions, weighted with r
    ### BEGIN SOLUTION
    first_tokens = partition_size * torch.arange(tmp_out.shape[2])
    exists = (first_tokens < seq_lens[:, None])[:, None]  # [num_seqs, 1, max_num_partitions]
    m = torch.where(exists, max_logits, -torch.inf)
    r = torch.where(exists, exp_sums, 0.0) * torch.exp(m - m.amax(dim=-1, keepdim=True))
    weights = r / r.sum(dim=-1, keepdim=True)
    tmp_out = torch.where(exists[..., None], tmp_out, 0.0)
    return (weights[..., None] * tmp_out).sum(dim=2)
    ### END SOLUTION


_RESCALE = "Each exp_sum counts from its own maximum: times exp(max_logit - M)."
_OWN = "M belongs to one sequence and one head."
_UNUSED = "seq_lens and partition_size say which partitions exist; NaN stays NaN, times 0 too."
_ALONE = "With one partition, r / r is 1: its output is the output."
TWO_HEADS = {"num_heads": 2}
MERGE_CASES = (
    # name, what it isolates, what its failure means, the step, tokens of a partition
    ("one_partition", "11 tokens, partitions of 16", _ALONE, problem((11,)), SIZE),
    ("two_partitions", "16 and 4 tokens", _RESCALE, problem((20,)), SIZE),
    ("full", "32 tokens in two partitions", _UNUSED, problem((32, 48)), SIZE),
    ("mixed_batch", "61, 11, 5 and 32 tokens", _UNUSED, problem((61, 11, 5, 32), **TWO_HEADS),
     SIZE),
    ("far_below_zero", "all scores near -300", _RESCALE,
     problem((40, 9), scores="deep_negative"), SIZE),
    ("far_apart", "scores from -300 to 300", _RESCALE,
     problem((70, 33), scores="drifting", **TWO_HEADS), SIZE),
    ("own_maximum", "near -300 and 300, by sequence and head", _OWN,
     problem((40, 20), scores="extreme", num_heads=4), SIZE),
    ("many_partitions", "170 tokens in 22 partitions", _RESCALE, problem((170, 1)), 8),
)  # fmt: skip


def merge_partitions_trials(draw: int = 0) -> list[Trial]:
    def run(step: DecodeProblem, size: int, function: Callable | None) -> dict[str, Tensor]:
        answer = merge_partitions if function is None else function
        ready = left_by(step, size)
        given = ready.exp_sums, ready.max_logits, ready.tmp_out, torch.tensor(step.seq_lens)
        own = [tensor.clone() for tensor in given]
        result = answer(*own, size)
        if not all(torch.equal(*map(torch.nan_to_num, p)) for p in zip(own, given, strict=True)):
            raise AnswerError("it changed one of its inputs; it must only read them")
        return {"out": require_merged(result, ready.tmp_out)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, step, size),
            references={
                "attention over all tokens": lambda step=step: {"out": step.expected()["out"]}
            },
            bounds={"out": 3e-4},  # scores near 300 are known to 3e-5 only
            axes=("sequence", "head", "dimension"),
        )
        for name, isolates, meaning, case, size in MERGE_CASES
        for step in [replace(case, seed=draw)]
    ]


MERGE = Exercise(
    notebook=NOTEBOOK,
    text="""\
The notebook merged the partitions of one head. Do it for a whole batch in torch: all sequences and
heads at once. In a mixed batch, many places were never written. They hold NaN.""",
    solution=merge_partitions,
    trials=merge_partitions_trials,
)


# 3. ---------------------------------------------------------------------------------------------


@cuda.jit
def reduce_online(out, exp_sums, max_logits, tmp_out, seq_lens, partition_size):
    """The reduce kernel, going once through the partitions. The grid is (num_heads, num_seqs).

    out                   [num_seqs, num_heads, head_size]
    exp_sums, max_logits  [num_seqs, num_heads, max_num_partitions]
    tmp_out               [num_seqs, num_heads, max_num_partitions, head_size]
    seq_lens              [num_seqs]

    Where a sequence has no such partition, exp_sums, max_logits and tmp_out hold NaN. All floats
    are float32. Any number of threads that is a multiple of 32.
    """
    # 1. which head of which sequence has this thread block? How many partitions has the sequence?
    # 2. thread t takes the elements t, t + cuda.blockDim.x, … of the output
    # 3. for each of them, go through the partitions with m, l and acc, as in notebook 05:
    #    a partition is a part with m = max_logit, l = exp_sum, and which acc?
    # 4. when m grows, l and acc are rescaled; m begins at float32(-math.inf)
    ### BEGIN SOLUTION
    head, sequence = cuda.blockIdx.x, cuda.blockIdx.y
    num_partitions = (seq_lens[sequence] + partition_size - 1) // partition_size
    for i in range(cuda.threadIdx.x, out.shape[2], cuda.blockDim.x):
        m, l, acc = float32(-math.inf), float32(0), float32(0)
        for j in range(num_partitions):
            max_logit = max_logits[sequence, head, j]
            m_new = max(m, max_logit)
            rescale = math.exp(m - m_new)
            r = exp_sums[sequence, head, j] * math.exp(max_logit - m_new)
            l = l * rescale + r
            acc = acc * rescale + r * tmp_out[sequence, head, j, i]
            m = m_new
        out[sequence, head, i] = acc / l
    ### END SOLUTION


_PART = "tmp_out is divided already: the acc of a partition is tmp_out times its exp_sum."
_GROWS = "When a larger maximum comes, the old l and acc are multiplied with exp(m - m_new)."
_LAST = "The sequence has ceil(seq_len / partition_size) partitions; behind them stands NaN."
ONLINE_CASES = (
    # name, what it isolates, what its failure means,
    # (threads, seq_lens, tokens of a partition, heads, head size, the first maximum, the step)
    ("one_partition", "a partition alone", _PART, (32, (5,), 8, 2, 32, 0, 0)),
    ("rising", "each maximum is larger than the last, by about 2", _GROWS,
     (32, (61,), 8, 1, 32, 0, 2)),
    ("two_partitions", "8 and 3 tokens, as in the worked example", _PART,
     (32, (11,), 8, 4, 32, 0, 0)),
    ("falling", "the first maximum is the largest", _GROWS, (32, (61,), 8, 1, 32, 0, -2)),
    ("far_apart", "maxima from -300 to 300", _GROWS, (32, (64, 40), 8, 1, 32, -300, 85)),
    ("far_below_zero", "all maxima near -300", _GROWS, (32, (64, 40), 8, 1, 32, -300, 0)),
    ("mixed_batch", "61, 11, 5 and 16 tokens, heads of 80", _LAST,
     (64, (61, 11, 5, 16), 8, 2, 80, 0, 1)),
    ("vllm", "partitions of 512, heads of 128, 128 threads", _LAST,
     (128, (4096, 1000), 512, 2, 128, 0, 0.5)),
)  # fmt: skip


def reduce_online_trials(draw: int = 0) -> list[Trial]:
    def task(
        num_threads: int, seq_lens: tuple, size: int, heads: int, head_size: int, *maxima: float
    ) -> Task:
        *given, expected = made_up_partitions(seq_lens, size, heads, head_size, *maxima, draw)
        used = heads * sum(-(-n // size) for n in seq_lens)  # partitions of all heads
        requests = used * -(-head_size // WARP_SIZE)
        enough = {
            1: Enough(requests, requests),
            2: Enough(requests, requests),
            3: Enough(used * -(-head_size * ITEM // SECTOR), requests),
        }
        lens = torch.tensor(seq_lens, dtype=torch.int32).numpy()
        return Task(
            num_threads,
            (*given, lens, lens.dtype.type(size)),
            expected,
            enough,
            most_shuffles=0,
            also=require_registers_only,
            grid=(heads, len(seq_lens)),
        )

    axes = "sequence", "head", "dimension"
    return [trial(*words, task(*sizes), reduce_online, axes) for *words, sizes in ONLINE_CASES]


ONLINE = Exercise(
    notebook=NOTEBOOK,
    text="""\
vLLM's reduce kernel goes through the partitions three times: for M, for the sum, for the output. So
it needs shared memory and barriers. Write one that goes through them once, with the online softmax
of notebook 05. Each thread does it for its own elements of the output: no shared memory, no
barrier, no shuffle. For 32 elements of the output, each number of a partition is read once.""",
    solution=reduce_online,
    trials=reduce_online_trials,
)

EXERCISES = (SPLIT, MERGE, ONLINE)
