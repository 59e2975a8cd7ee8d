"""Grading of the kernels with partitions: together, and each alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window.cases import (
    PARTITION,
    PARTITIONS_CASES,
    REDUCE_CASES,
    V2_CASES,
    problems,
)
from pa_tutorial.coursework.window.files import Kernels, solution
from pa_tutorial.coursework.window.grading import (
    BOUNDS,
    bytes_of,
    is_close,
    is_right,
    require_few_bytes,
    require_kernel,
    window_trial,
)
from pa_tutorial.coursework.window.problem import WindowProblem
from pa_tutorial.kernels.launch import Launch, Partitioned, prepare_v2
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError
from pa_tutorial.walk.oracle import Array


def v2_launches(
    problem: WindowProblem, kernels: tuple[Callable[..., Callable], Callable[..., Callable]]
) -> Partitioned:
    """The two launches of an answer to the task v2: paged_attention and reduce."""
    kernels = Kernels(*kernels)
    prepared = prepare(problem)
    loads = vector_loads if problem.vectors else element_loads
    made = kernels.paged_attention(prepared.partitions.geometry, loads, problem.window)
    partitions = replace(prepared.partitions, kernel=require_kernel(made))
    return Partitioned(partitions, with_reduce(prepared.reduce, problem, kernels))


def prepare(problem: WindowProblem) -> Partitioned:
    """The launches of v2, without a window."""
    return prepare_v2(
        **vars(problem.paged("vllm")),
        num_threads=problem.num_threads,
        loads=vector_loads if problem.vectors else element_loads,
        partition_size=problem.partition_size,
    )


def with_reduce(prepared: Launch, problem: WindowProblem, kernels: Kernels) -> Launch:
    kernel = require_kernel(Kernels(*kernels).reduce(prepared.geometry, problem.window))
    return replace(prepared, kernel=kernel)


def v2_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output; between the two launches, the places of partitions before the window get what
    nobody may read, whatever the first kernel did there."""
    prepared = v2_launches(problem, kernels)
    prepared.partitions.simulate()
    fill = made_up_partitions(problem, left_over=True)
    for tensor, array in zip(left_by(prepared), fill, strict=True):
        for sequence, (start, _) in enumerate(reached(problem)):
            before = torch.from_numpy(array[sequence, :, :start])
            tensor[sequence, :, :start] = before if problem.left_over else torch.nan
    prepared.reduce.simulate()
    return prepared.out


def left_by(prepared: Partitioned) -> tuple[Tensor, Tensor, Tensor]:
    """What the first kernel leaves for the second."""
    return prepared.exp_sums, prepared.max_logits, prepared.tmp_out


def v2_trials(draw: int = 0) -> list[Trial]:
    def all_of(cases: tuple) -> list[WindowProblem]:
        return problems(cases, draw, partition_size=PARTITION)

    runs = zip(all_of(PARTITIONS_CASES), (partitions_out, idle_out, few_bytes_out), strict=True)
    together = [window_trial("v2", problem, v2_out) for problem in all_of(V2_CASES)]
    first = [window_trial("v2", problem, run) for problem, run in runs]
    return together + first + [reduce_trial(problem) for problem in all_of(REDUCE_CASES)]


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
    prepared = v2_launches(problem, kernels)
    trace = prepared.partitions.simulate(trace="all").trace
    return merged(problem, *(tensor.double().numpy() for tensor in left_by(prepared))), trace


def thread_blocks_before(problem: WindowProblem, trace: Trace) -> list[int]:
    """Numbers of the thread blocks whose partition lies wholly before the window."""
    num_heads, num_seqs, num_partitions = trace.grid
    before = []
    for sequence, first in enumerate(problem.first_tokens()):
        for partition in range(min(first // problem.partition_size, num_partitions)):
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


def reached(problem: WindowProblem) -> list[tuple[int, int]]:
    """For each sequence the partitions [start, end) that hold a token of its window."""
    size = problem.partition_size
    pairs = zip(problem.first_tokens(), problem.seq_lens, strict=True)
    return [(first // size, -(-seq_len // size)) for first, seq_len in pairs]


# The reduce kernel alone -----------------------------------------------------------------------


def reduce_trial(problem: WindowProblem) -> Trial:
    """The reduce kernel on made-up partitions; NaN where the first kernel writes nothing."""

    def run(answer: object) -> dict[str, Tensor]:
        kernels = solution()["v2"] if answer is None else answer
        prepared = prepare(problem)
        for tensor, array in zip(left_by(prepared), made_up_partitions(problem), strict=True):
            tensor.copy_(torch.from_numpy(array))
        trace = with_reduce(prepared.reduce, problem, kernels).simulate(trace="all").trace
        if is_close(problem, prepared.out, expected()["out"]):
            require_no_reads_before(trace, problem)
            require_copies(problem, prepared)
        return {"out": prepared.out}

    def expected() -> dict[str, Tensor]:
        return {"out": merged(problem, *made_up_partitions(problem))}

    return Trial(
        name=problem.name,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=run,
        references={"the partitions merged in float64": expected},
        bounds={"out": BOUNDS[problem.dtype]},
        axes=problem.axes,
    )


def require_no_reads_before(trace: Trace, problem: WindowProblem) -> None:
    """AnswerError if the reduce kernel read a place of a partition before the window."""
    first = [start for start, _ in reached(problem)]
    arrays = {touched.name: touched for touched in trace.arrays if touched.space == "global"}
    for name, width in (("max_logits", 1), ("exp_sums", 1), ("tmp_out", problem.head_size)):
        if name not in arrays:
            continue
        (places,) = arrays[name].indices(trace.only(array=name, kind="read").records.address)
        rows, partitions = np.divmod(places // width, num_partitions_of(problem))
        if np.any(partitions < np.take(first, rows // problem.num_heads)):
            raise AnswerError(
                f"the output is right, but the reduce kernel read {name} of partitions that lie "
                "wholly before the window"
            )


def require_copies(problem: WindowProblem, prepared: Partitioned) -> None:
    """AnswerError if one partition is left and its output is not copied bit by bit."""
    for sequence, (start, end) in enumerate(reached(problem)):
        copied = prepared.tmp_out[sequence, :, start].equal(prepared.out[sequence])
        if end - start == 1 and not copied:
            raise AnswerError(
                "one partition is left: its output must be copied, and not be multiplied by a "
                "weight, which is rounded"
            )


def num_partitions_of(problem: WindowProblem) -> int:
    """Partitions of the longest sequence."""
    return -(-max(problem.seq_lens) // problem.partition_size)


def made_up_partitions(
    problem: WindowProblem, left_over: bool = False
) -> tuple[Array, Array, Array]:
    """exp_sums, max_logits, tmp_out in their shapes: float32 numbers, as float64.

    left_over  partitions that no window reaches have numbers too; else they have NaN
    """
    of_a_head = len(problem.seq_lens), problem.num_heads, num_partitions_of(problem)
    rng = np.random.default_rng((problem.seed, 4))
    tmp_out = 0.5 + rng.standard_normal((*of_a_head, problem.head_size))
    max_logits = 3 * rng.standard_normal(of_a_head)
    exp_sums = 1 + problem.partition_size * rng.random(of_a_head)
    for sequence, (start, end) in enumerate([] if left_over else reached(problem)):
        for array in (exp_sums, max_logits, tmp_out):
            array[sequence, :, :start] = np.nan
            array[sequence, :, end:] = np.nan
    return tuple(a.astype(np.float32).astype(float) for a in (exp_sums, max_logits, tmp_out))
