"""Grade the kernels by their output, and by the bytes that they read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, checked, require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.window import kernel_cases
from pa_tutorial.exercises.window.files import solved_kernels
from pa_tutorial.exercises.window.solution.window import shared_bytes
from pa_tutorial.exercises.window.window_problem import WindowProblem
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.cuda_launch import PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.sources import Source

Files = tuple[Source, ...]  # an answer: v1_window.py, and for v2 also v2_window.py
Run = Callable[[WindowProblem, Files], Tensor]
NUM_THREADS = 64
BOUNDS = {torch.float32: 3e-4, torch.float16: 5e-3}  # of relative errors; scores go up to 300


@dataclass(frozen=True)
class WindowTrial(Trial):
    """A Trial of a kernel.

    step  what is computed. It isn't passed as `problem`: if some heads are wrong, the check would
          name their KV heads, but here a large slope hides in one head what is wrong in all
    """

    step: WindowProblem | None = None


def reference_trials(draw: int = 0) -> list[Trial]:
    problems = kernel_cases.problems(kernel_cases.REFERENCE_CASES, draw)
    return [window_trial(problem, reference_out) for problem in problems]


def v1_trials(draw: int = 0) -> list[Trial]:
    problems = kernel_cases.problems(kernel_cases.V1_CASES, draw)
    return [window_trial(problem, v1_out) for problem in problems]


def v2_trials(draw: int = 0) -> list[Trial]:
    def trials(cases: tuple[tuple, ...], run: Run) -> list[Trial]:
        problems = kernel_cases.problems(cases, draw, kernel_cases.PARTITION)
        return [window_trial(problem, run) for problem in problems]

    # Each kernel alone too, so that a correct one gets its points beside a wrong one.
    ours = solved_kernels()
    return [
        *trials(kernel_cases.V2_CASES, v2_out),
        *trials(kernel_cases.FIRST_CASES, lambda p, files: v2_out(p, files, reduce=ours)),
        *trials(kernel_cases.REDUCE_CASES, lambda p, files: v2_out(p, ours, reduce=files)),
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


def v1_launch(problem: WindowProblem, files: Files) -> PagedLaunch:
    """The launch of an answer to the task v1."""
    backend = v1_vector_backend if problem.vectors else v1_backend
    launch = backend.prepare(problem.paged("vllm"), num_threads=NUM_THREADS)
    if problem.little_memory:
        needed = shared_bytes(launch.geometry, max(problem.seq_lens), problem.window)
        launch = replace(launch, shared_bytes=needed)
    namespace = namespace_of(backend, files, launch.geometry, problem.window)
    return replace(launch, namespace=namespace, kernel=namespace.paged_attention_v1)


def v2_launches(problem: WindowProblem, files: Files, reduce: Files = ()) -> PartitionedLaunch:
    """The two launches of an answer to the task v2.

    reduce  of another answer, for the reduce kernel; (): the same files
    """
    launches = v2_backend.prepare(
        problem.paged("vllm"),
        num_threads=NUM_THREADS,
        partition_size=problem.partition_size,
    )
    first, second = (
        namespace_of(v2_backend, one, launches.partitions.geometry, problem.window)
        for one in (files, reduce or files)
    )
    return PartitionedLaunch(
        replace(launches.partitions, namespace=first, kernel=first.paged_attention_v2),
        replace(launches.reduce, namespace=second, kernel=second.reduce_partitions),
    )


def namespace_of(backend: CudaBackend, files: Files, geometry: Geometry, window: int) -> ModuleType:
    """The kernel with a window: the files of an answer, executed after all of ours."""
    with_files = backend.with_functions(**{backend.kernel: files})
    return with_files.namespace(**geometry.sizes, WINDOW=window)


def reference_out(problem: WindowProblem, answer: Callable[..., Tensor]) -> Tensor:
    """The output of an answer to the task paged_attention, in the plain layout."""
    step = vars(problem.paged("plain"))
    return checked(
        lambda: require_written(answer(**step, window=problem.window)),
        {name: value for name, value in step.items() if isinstance(value, Tensor)},
    )


def v1_out(problem: WindowProblem, files: Files) -> Tensor:
    launch = v1_launch(problem, files)
    simulate(launch, problem)
    return launch.out


def v2_out(problem: WindowProblem, files: Files, reduce: Files = ()) -> Tensor:
    """The output; the arguments are as for v2_launches. Between the two launches, the entries of
    partitions before the window are overwritten with numbers that an earlier step may have left
    there."""
    launches = v2_launches(problem, files, reduce)
    simulate(launches.partitions, problem)
    for sequence, first in enumerate(problem.first_tokens()):
        before = slice(first // problem.partition_size)
        launches.exp_sums[sequence, :, before] = 3.0
        launches.max_logits[sequence, :, before] = 300.0
        launches.tmp_out[sequence, :, before] = torch.nan
    launches.reduce.simulate()
    return launches.out


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
