"""The exercise of Partitions: the reduce kernel in one pass."""

import math
from collections.abc import Sequence

import numpy as np
from numba import cuda, float32

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import ITEM, Enough, Task, on_tasks
from pa_tutorial.exercises.random_inputs import seeded
from simt import Trace
from simt.gpus import WARP_SIZE
from simt.traffic import SECTOR


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
    # 1. this thread block computes which head of which sequence, with how many partitions?
    # 2. thread t takes the elements t, t + cuda.blockDim.x, … of the output
    # 3. for each of them, go through the partitions with m, l and acc, as in Online softmax:
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


_ONE = "Thread block (head, sequence) writes acc / l: tmp_out, if there is only one partition."
_PART = "tmp_out is divided already: the acc of a partition is tmp_out times its exp_sum."
_GROWS = "When a larger maximum comes, the old l and acc are multiplied by exp(m - m_new)."
_LAST = "The sequence has ceil(seq_len / partition_size) partitions; the rest is NaN."
ONLINE_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means,
    # threads, seq_lens, tokens of a partition, heads, head size, the first maximum, the step
    ("one_partition", "a partition alone", _ONE, 32, (5,), 8, 2, 32, 0, 0),
    ("rising", "each maximum is larger than the last, by about 2", _GROWS,
     32, (61,), 8, 1, 32, 0, 2),
    ("two_partitions", "8 and 3 tokens, as in the worked example", _PART,
     32, (11,), 8, 4, 32, 0, 0),
    ("at_the_border", "7, 8 and 9 tokens in partitions of 8", _LAST,
     32, (7, 8, 9), 8, 1, 32, 0, 0),
    ("falling", "the first maximum is the largest", _GROWS, 32, (61,), 8, 1, 32, 0, -2),
    ("far_apart", "maxima from -300 to 300", _GROWS, 32, (64, 40), 8, 1, 32, -300, 85),
    ("far_apart_falling", "maxima from 300 to -300", _GROWS, 32, (64, 40), 8, 1, 32, 300, -85),
    ("far_below_zero", "all maxima near -300", _GROWS, 32, (64, 40), 8, 1, 32, -300, 0),
    ("mixed_batch", "61, 11, 5 and 16 tokens, heads of 80", _LAST,
     64, (61, 11, 5, 16), 8, 2, 80, 0, 1),
    ("vllm", "partitions of 512, heads of 128, 128 threads", _LAST,
     128, (4096, 1000), 512, 2, 128, 0, 0.5),
)  # fmt: skip


def made_up_partitions(
    seq_lens: Sequence[int],
    partition_size: int,
    num_heads: int,
    head_size: int,
    first: float,
    step: float,
    draw: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """exp_sums, max_logits, tmp_out (NaN where there is no partition), and out in float64.

    first, step  the maxima are about first, first + step, …
    """
    rng = seeded(len(seq_lens), draw)
    used = -(-np.array(seq_lens) // partition_size)
    shape = len(seq_lens), num_heads, int(used.max())
    noise = rng.standard_normal(shape)
    if draw:
        noise = noise.clip(-0.9, 0.9)  # with a step of 2, every maximum is beyond the last one
    max_logits = (first + step * np.arange(shape[2]) + noise).astype(np.float32)
    exp_sums = (1 + partition_size * rng.random(shape)).astype(np.float32)
    tmp_out = (0.5 + rng.standard_normal((*shape, head_size))).astype(np.float32)
    none = np.broadcast_to(np.arange(shape[2]) >= used[:, None, None], shape)
    m = np.where(none, -np.inf, max_logits.astype(float))
    r = np.where(none, 0, exp_sums) * np.exp(m - m.max(axis=-1, keepdims=True))
    weights = (r / r.sum(axis=-1, keepdims=True))[..., None]
    expected = (weights * np.where(none[..., None], 0, tmp_out)).sum(axis=2)
    for array in (exp_sums, max_logits, tmp_out):
        array[none] = np.nan
    return exp_sums, max_logits, tmp_out, expected


def require_registers_only(trace: Trace) -> None:
    """No shared memory and no barrier."""
    if len(trace.only(space="shared")) or len(trace.only(kind="barrier")):
        raise AnswerError(
            "the answer is right, with shared memory or a barrier; a thread that goes once through "
            "the partitions needs only its own three numbers"
        )


def online_task(draw: int, num_threads: int, seq_lens: tuple, size: int, *sizes: int) -> Task:
    heads, head_size, *_maxima = sizes
    *parts, expected = made_up_partitions(seq_lens, size, *sizes, draw)
    used = heads * sum(-(-n // size) for n in seq_lens)  # partitions of all heads
    transactions = used * -(-head_size // WARP_SIZE)
    enough = {
        1: Enough(transactions, transactions),
        2: Enough(transactions, transactions),
        3: Enough(used * -(-head_size * ITEM // SECTOR), transactions),
    }
    inputs = *parts, np.array(seq_lens, np.int32), np.int32(size)
    costs = {"most_shuffles": 0, "also": require_registers_only}
    return Task(num_threads, inputs, expected, enough, grid=(heads, len(seq_lens)), **costs)


ONLINE = Exercise(
    solution=reduce_online,
    cases=on_tasks(ONLINE_CASES, online_task, ("sequence", "head", "dimension")),
)

EXERCISES = (ONLINE,)
