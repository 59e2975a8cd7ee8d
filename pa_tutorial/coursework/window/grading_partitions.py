"""Grading of the kernels with partitions: together, and each alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window.cases import (
    FIRST_CASES,
    PARTITION,
    REDUCE_CASES,
    V2_CASES,
    problems,
)
from pa_tutorial.coursework.window.files import solution
from pa_tutorial.coursework.window.grading import (
    bytes_of,
    is_right,
    loads_of,
    require_few_bytes,
    require_kernel,
    window_trial,
)
from pa_tutorial.coursework.window.problem import WindowProblem
from pa_tutorial.kernels.prepare import PartitionedBackend
from pa_tutorial.kernels.running import PartitionedLaunch
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError
from pa_tutorial.walk.oracle import Array

# paged_attention(geometry, loads, window) and reduce(geometry, window)
Kernels = tuple[Callable[..., Callable], Callable[..., Callable]]


def v2_trials(draw: int = 0) -> list[Trial]:
    def trials(cases: tuple, *runs: Callable) -> list[Trial]:
        drawn = problems(cases, draw, partition_size=PARTITION)
        pairs = zip(drawn, runs or [v2_out] * len(drawn), strict=True)
        return [window_trial("v2", problem, run) for problem, run in pairs]

    first = trials(FIRST_CASES, partitions_out, idle_out, few_bytes_out)
    return trials(V2_CASES) + first + trials(REDUCE_CASES, reduce_out, reduce_out)


def v2_launches(problem: WindowProblem, kernels: Kernels) -> PartitionedLaunch:
    """The two launches of an answer to the task v2: paged_attention and reduce."""
    paged_attention, reduce = kernels
    loads = loads_of(problem)
    prepared = PartitionedBackend(loads).prepare(
        problem.paged("vllm"),
        num_threads=problem.num_threads,
        partition_size=problem.partition_size,
    )
    geometry, window = prepared.partitions.geometry, problem.window
    first = require_kernel(paged_attention(geometry, loads, window))
    second = require_kernel(reduce(geometry, window))
    return PartitionedLaunch(
        replace(prepared.partitions, kernel=first), replace(prepared.reduce, kernel=second)
    )


def v2_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output; between the two launches, the places of partitions before the window get what
    nobody may read, whatever the first kernel did there."""
    prepared = v2_launches(problem, kernels)
    prepared.partitions.simulate()
    rng = np.random.default_rng((problem.seed, 4))
    for tensor in left_by(prepared):
        for sequence, (start, _) in enumerate(reached(problem)):
            before = tensor[sequence, :, :start]
            old = torch.from_numpy(1 + 3 * rng.random(before.shape)).to(before.dtype)
            before.copy_(old if problem.left_over else torch.full_like(before, torch.nan))
    trace = prepared.reduce.simulate(trace="all").trace
    if is_right(problem, prepared.out):
        require_no_reads_before(trace, problem)
        require_copies(problem, prepared)
    return prepared.out


def reduce_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output of the answer's reduce kernel after the first kernel of the solution."""
    return v2_out(problem, (solution()["v2"][0], kernels[1]))


def left_by(prepared: PartitionedLaunch) -> tuple[Tensor, Tensor, Tensor]:
    """What the first kernel leaves for the second."""
    return prepared.exp_sums, prepared.max_logits, prepared.tmp_out


def reached(problem: WindowProblem) -> list[tuple[int, int]]:
    """For each sequence the partitions [start, end) that hold a token of its window."""
    size = problem.partition_size
    pairs = zip(problem.first_tokens(), problem.seq_lens, strict=True)
    return [(first // size, -(-seq_len // size)) for first, seq_len in pairs]


def require_no_reads_before(trace: Trace, problem: WindowProblem) -> None:
    """AnswerError if the reduce kernel read a place of a partition before the window."""
    first = [start for start, _ in reached(problem)]
    num_partitions = max(end for _, end in reached(problem))
    arrays = {touched.name: touched for touched in trace.arrays if touched.space == "global"}
    for name, width in (("max_logits", 1), ("exp_sums", 1), ("tmp_out", problem.head_size)):
        if name not in arrays:
            continue
        (places,) = arrays[name].indices(trace.only(array=name, kind="read").records.address)
        rows, partitions = np.divmod(places // width, num_partitions)
        if np.any(partitions < np.take(first, rows // problem.num_heads)):
            raise AnswerError(
                f"the output is right, but the reduce kernel read {name} of partitions that lie "
                "wholly before the window"
            )


def require_copies(problem: WindowProblem, prepared: PartitionedLaunch) -> None:
    """AnswerError if one partition is left and its output is not copied bit by bit."""
    for sequence, (start, end) in enumerate(reached(problem)):
        copied = prepared.tmp_out[sequence, :, start].equal(prepared.out[sequence])
        if end - start == 1 and not copied:
            raise AnswerError(
                "one partition is left: its output must be copied, and not be multiplied by a "
                "weight, which is rounded"
            )


# The first kernel alone ------------------------------------------------------------------------


def partitions_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    return traced_partitions(problem, kernels)[0]


def idle_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output; AnswerError if it is right, and partitions before the window did something."""
    out, trace = traced_partitions(problem, kernels)
    if is_right(problem, out):
        blocks = thread_blocks_before(problem, trace)
        for array in ("q", "k_cache", "v_cache", "out", "exp_sums", "max_logits"):
            found = bytes_of(trace, array, blocks)
            if found:
                raise AnswerError(
                    f"the output is right, but thread blocks whose partition lies wholly before "
                    f"the window touched {found:,} bytes of {array}"
                )
    return out


def few_bytes_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output; AnswerError if it is right, and too many bytes of K or V were read."""
    out, trace = traced_partitions(problem, kernels)
    if is_right(problem, out):
        for array in ("k_cache", "v_cache"):
            require_few_bytes(trace, array, problem)
    return out


def traced_partitions(problem: WindowProblem, kernels: Kernels) -> tuple[Tensor, Trace]:
    """What the first kernel left, merged in float64; and the trace of all its thread blocks."""
    prepared = v2_launches(problem, (kernels[0], solution()["v2"][1]))
    trace = prepared.partitions.simulate(trace="all").trace
    return merged(problem, *(tensor.double().numpy() for tensor in left_by(prepared))), trace


def thread_blocks_before(problem: WindowProblem, trace: Trace) -> list[int]:
    """Numbers of the thread blocks whose partition lies wholly before the window."""
    num_heads, num_seqs, _ = trace.grid
    before = []
    for sequence, (first, _) in enumerate(reached(problem)):
        for partition in range(first):
            start = (partition * num_seqs + sequence) * num_heads
            before += range(start, start + num_heads)
    return before


def merged(problem: WindowProblem, exp_sums: Array, max_logits: Array, tmp_out: Array) -> Tensor:
    """[num_seqs, num_heads, head_size] float64, of the partitions that the windows reach.

    What an answer has left may be anything: NaN and infinity go on without a warning.

    exp_sums, max_logits  [num_seqs, num_heads, max_num_partitions]
    tmp_out               [num_seqs, num_heads, max_num_partitions, head_size]
    """
    out = np.zeros((*tmp_out.shape[:2], tmp_out.shape[3]))
    for sequence, (start, end) in enumerate(reached(problem)):
        sums, maxima = exp_sums[sequence, :, start:end], max_logits[sequence, :, start:end]
        with np.errstate(all="ignore"):
            weights = sums * np.exp(maxima - maxima.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[sequence] = (weights[..., None] * tmp_out[sequence, :, start:end]).sum(axis=1)
    return torch.from_numpy(out)
