"""Grade the kernels by their output, and by the bytes that they read."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window import kernel_cases
from pa_tutorial.coursework.window.files import solution
from pa_tutorial.coursework.window.window_problem import WindowProblem
from pa_tutorial.kernels.cuda_backends import PagedBackend, PartitionedBackend
from pa_tutorial.kernels.cuda_launch import PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.vectors import vector_loads

Kernels = tuple[Callable[..., Callable], Callable[..., Callable]]
Run = Callable[[WindowProblem, object], Tensor]
NUM_THREADS = 64
BOUNDS = {torch.float32: 3e-4, torch.float16: 5e-3}  # of relative errors; scores go up to 300


@dataclass(frozen=True)
class WindowTrial(Trial):
    """A Trial of a kernel.

    step  what is computed. It isn't passed as `problem`: if some heads are wrong, the check would
          name their KV heads, but here a large slope hides in one head what is wrong in all
    """

    step: WindowProblem | None = None


def v1_trials(draw: int = 0) -> list[Trial]:
    problems = kernel_cases.problems(kernel_cases.V1_CASES, draw)
    return [window_trial(problem, v1_out) for problem in problems]


def v2_trials(draw: int = 0) -> list[Trial]:
    def trials(cases: tuple[tuple, ...], run: Run) -> list[Trial]:
        problems = kernel_cases.problems(cases, draw, kernel_cases.PARTITION)
        return [window_trial(problem, run) for problem in problems]

    # Each kernel alone too, so that a correct one gets its points beside a wrong one.
    first, reduce = solution()["v2"]
    return [
        *trials(kernel_cases.V2_CASES, v2_out),
        *trials(kernel_cases.FIRST_CASES, lambda p, answer: v2_out(p, (answer[0], reduce))),
        *trials(kernel_cases.REDUCE_CASES, lambda p, answer: v2_out(p, (first, answer[1]))),
    ]


def window_trial(problem: WindowProblem, run: Run) -> Trial:
    """run: of a problem and an answer; out [num_seqs, num_heads, head_size]."""
    return WindowTrial(
        name=problem.name,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=lambda answer: {"out": torch.stack([run(step, answer) for step in problem.steps()])},
        references={"float64 over the tokens of the window": problem.expected},
        bounds={"out": BOUNDS[problem.dtype]},
        axes=("with the window|with window = 0", *problem.axes),
        step=problem,
    )


def loads_of(problem: WindowProblem) -> Callable:
    return vector_loads if problem.vectors else element_loads


def with_kernel(launch: PagedLaunch, make: Callable, problem: WindowProblem) -> PagedLaunch:
    """make: paged_attention(geometry, loads, window) of an answer."""
    kernel = require_kernel(make(launch.geometry, loads_of(problem), problem.window))
    return replace(launch, kernel=kernel)


def require_kernel(made: object) -> Callable:
    """The factory's result, if it is a @cuda.jit kernel; else AnswerError with a message."""
    if not hasattr(require_written(made), "py_func"):
        raise AnswerError(f"the factory returned a {type(made).__name__}; it must return a kernel")
    return made


def v1_launch(problem: WindowProblem, paged_attention: Callable) -> PagedLaunch:
    """The launch of an answer to the task v1."""
    backend = PagedBackend(loads_of(problem))
    ours = backend.prepare(problem.paged("vllm"), num_threads=NUM_THREADS)
    launch = with_kernel(ours, paged_attention, problem)
    if problem.little_memory:
        sizes = launch.geometry, max(problem.seq_lens), problem.window
        launch = replace(launch, shared_bytes=solution()["shared_bytes"](*sizes))
    return launch


def v1_out(problem: WindowProblem, paged_attention: Callable) -> Tensor:
    launch = v1_launch(problem, paged_attention)
    simulate(launch, problem)
    return launch.out


def simulate(launch: PagedLaunch, problem: WindowProblem) -> None:
    """Raise AnswerError if the lanes read more bytes of K or V than the window's blocks have."""
    if not problem.counted:
        launch.simulate()
        return
    trace = launch.simulate(trace="all").trace
    touched = {array.name for array in trace.arrays}
    for name in touched.intersection(problem.counted):
        found = trace.only(array=name, space="global").records.num_bytes.sum(dtype=int)
        if found > problem.bytes_seen():
            raise AnswerError(
                f"{found:,} bytes of {name} were read; the blocks of the windows hold "
                f"{problem.bytes_seen():,}"
            )


def v2_launches(problem: WindowProblem, kernels: Kernels) -> PartitionedLaunch:
    """The two launches of an answer to the task v2: paged_attention and reduce."""
    backend = PartitionedBackend(loads_of(problem))
    launches = backend.prepare(
        problem.paged("vllm"),
        num_threads=NUM_THREADS,
        partition_size=problem.partition_size,
    )
    first = with_kernel(launches.partitions, kernels[0], problem)
    second = require_kernel(kernels[1](first.geometry, problem.window))
    return PartitionedLaunch(first, replace(launches.reduce, kernel=second))


def v2_out(problem: WindowProblem, kernels: Kernels) -> Tensor:
    """The output. Between the two launches, the entries of partitions before the window are
    overwritten with numbers that an earlier step may have left there."""
    launches = v2_launches(problem, kernels)
    simulate(launches.partitions, problem)
    for sequence, first in enumerate(problem.first_tokens()):
        before = slice(first // problem.partition_size)
        launches.exp_sums[sequence, :, before] = 3.0
        launches.max_logits[sequence, :, before] = 300.0
        launches.tmp_out[sequence, :, before] = torch.nan
    launches.reduce.simulate()
    return launches.out
