"""Grading of the kernel without partitions: its output, and the bytes that it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window.cases import V1_CASES, V1_READS, problems
from pa_tutorial.coursework.window.files import solved
from pa_tutorial.coursework.window.problem import WindowProblem
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.prepare import PagedBackend
from pa_tutorial.kernels.running import PagedLaunch
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError, require_written

Run = Callable[[WindowProblem, object], Tensor]
BOUNDS = {torch.float32: 3e-4, torch.float16: 5e-3}  # of a relative error; scores go up to 300


@dataclass(frozen=True)
class WindowTrial(Trial):
    """A Trial of a kernel.

    step  what is computed. It is not given as `problem`: where some heads are wrong, the check
          would name their KV heads. Here a large slope hides in one head what is wrong in all
    """

    step: WindowProblem | None = None


def loads_of(problem: WindowProblem) -> Callable:
    return vector_loads if problem.vectors else element_loads


def v1_launch(problem: WindowProblem, paged_attention: Callable) -> PagedLaunch:
    """The launch of an answer to the task v1: `paged_attention(geometry, loads, window)`."""
    loads = loads_of(problem)
    step = problem.paged("vllm")
    prepared = PagedBackend(loads).prepare(step, num_threads=problem.num_threads)
    kernel = require_kernel(paged_attention(prepared.geometry, loads, problem.window))
    return replace(prepared, kernel=kernel)


def v1_out(problem: WindowProblem, paged_attention: Callable) -> Tensor:
    prepared = v1_launch(problem, paged_attention)
    prepared.simulate()
    return prepared.out


def v1_trials(draw: int = 0) -> list[Trial]:
    reads = [
        window_trial("v1", problem, lambda p, answer, name=name: v1_reads(p, answer, name))
        for problem, name in zip(problems(V1_READS, draw), ("k_cache", "v_cache"), strict=True)
    ]
    return [window_trial("v1", problem, v1_out) for problem in problems(V1_CASES, draw)] + reads


def v1_reads(problem: WindowProblem, paged_attention: Callable, array: str) -> Tensor:
    """The output; AnswerError if it is right, and too many bytes of the array were read."""
    prepared = v1_launch(problem, paged_attention)
    trace = prepared.simulate(trace="all").trace
    if is_right(problem, prepared.out):
        require_few_bytes(trace, array, problem)
    return prepared.out


def window_trial(task: str, problem: WindowProblem, run: Run) -> Trial:
    """run: of a problem and the answer to a task."""

    def out(answer: object) -> dict[str, Tensor]:
        answer = solved(task, answer)
        found = run(problem, answer)
        if problem.also_without and is_right(problem, found):
            without = problem.without()
            if not is_right(without, run(without, answer)):
                raise AnswerError("right with a window, and wrong with window = 0")
        return {"out": found}

    return WindowTrial(
        name=problem.name,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=out,
        references={"float64 with an explicit mask": problem.expected},
        bounds={"out": BOUNDS[problem.dtype]},
        axes=problem.axes,
        step=problem,
    )


def require_kernel(made: object) -> Callable:
    """What a factory returned, if it is a @cuda.jit kernel; else a message for its author."""
    if not hasattr(require_written(made), "py_func"):
        raise AnswerError(f"the factory returned a {type(made).__name__}; it must return a kernel")
    return made


def is_right(problem: WindowProblem, out: Tensor) -> bool:
    expected = torch.from_numpy(problem.expected()["out"])
    return bool((out.double() - expected).norm() <= BOUNDS[problem.dtype] * expected.norm())


def require_few_bytes(trace: Trace, array: str, problem: WindowProblem) -> None:
    """AnswerError if the lanes asked for more bytes of the array than the window's blocks have."""
    found = bytes_of(trace, array)
    of_block = problem.block_size * problem.head_size * problem.dtype.itemsize
    most = problem.blocks_seen() * problem.num_heads * of_block
    if found > most:
        raise AnswerError(
            f"the output is right, but {found:,} bytes of {array} were read; the blocks of the "
            f"windows hold {most:,}"
        )


def bytes_of(trace: Trace, array: str, blocks: Sequence[int] | None = None) -> int:
    """Bytes of a global array that the lanes of the traced thread blocks ask for.

    blocks  only these thread blocks, by number
    """
    if array not in {touched.name for touched in trace.arrays}:
        return 0
    records = trace.only(array=array, space="global").records
    if blocks is not None:
        records = records[np.isin(records.block, blocks)]
    return int(records.num_bytes.sum(dtype=int))
