"""Grading of kernels: the right answer, no finding, and no more traffic than is needed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.ladder import AnswerError
from pa_tutorial.simt import Trace, global_traffic, launch, shared_traffic
from pa_tutorial.simt.names import plain_function
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.trace import KINDS
from pa_tutorial.simt.traffic import SECTOR

BOUND = 1e-6


@dataclass(frozen=True)
class Enough:
    """What may be spent on an array of global memory."""

    sectors: int
    requests: int

    @classmethod
    def of(cls, num_elements: int, times_full_warps: int = 1) -> "Enough":
        """For float32 that are moved once, by so many times the requests of full warps."""
        requests = times_full_warps * -(-num_elements // WARP_SIZE)
        return cls(-(-num_elements * 4 // SECTOR), requests)


@dataclass(frozen=True)
class Task:
    """One launch of a kernel: kernel[1, num_threads](out, *inputs), with out in float32.

    expected        [shape of out]
    enough          number of an argument (out is 0) -> what may be spent on it
    most_shuffles   None: any number
    no_conflicts    shared memory must be used, without bank conflicts
    """

    num_threads: int
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    enough: Mapping[int, Enough]
    most_shuffles: int | None = None
    no_conflicts: bool = False

    def run(self, kernel: Callable) -> dict[str, Tensor]:
        """The output. An answer that is right must not have cost too much.

        Raises AnswerError for a kernel that leaves a part of out unwritten, changes an input or
        spends too much; SimtError for a finding.
        """
        out = np.full(self.expected.shape, np.nan, np.float32)
        before = [array.copy() for array in self.inputs]
        trace = launch(kernel, 1, self.num_threads, out, *self.inputs, trace=0).trace
        names = (plain_function(kernel) or kernel).__code__.co_varnames
        _require_all_written(trace, names[0], out.shape)
        pairs = zip(self.inputs, before, strict=True)
        if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            raise AnswerError("it changed one of its inputs; it must only read them")
        if np.allclose(out, self.expected, rtol=BOUND, atol=BOUND):
            self._require_little(trace, names)
        return {"out": torch.from_numpy(out)}

    def _require_little(self, trace: Trace, names: tuple[str, ...]) -> None:
        for number, most in self.enough.items():
            _require_few(trace, names[number], most)
        shuffles, most = trace.only(kind="shuffle").num_instructions, self.most_shuffles
        if most is not None and shuffles > most:
            raise AnswerError(f"the answer is right, with {shuffles} shuffles; {most} are enough")
        if self.no_conflicts:
            _require_no_conflicts(trace)


def trial(
    name: str, isolates: str, meaning: str, task: Task, solution: Callable, axes: tuple[str, ...]
) -> Trial:
    return Trial(
        name=name,
        isolates=isolates,
        meaning=meaning,
        run=lambda function: task.run(function or solution),
        references={"NumPy": lambda: {"out": torch.from_numpy(task.expected)}},
        bounds={"out": BOUND},
        axes=axes,
    )


def _require_all_written(trace: Trace, name: str, shape: tuple[int, ...]) -> None:
    if name not in {array.name for array in trace.arrays}:
        raise AnswerError(
            f"the kernel wrote nothing into {name}: is your code in it? (not written yet)"
        )
    missing = np.ones(shape, bool)
    touched = trace.only(array=name)
    changed = touched.records[touched.records.kind != KINDS.index("read")]
    missing[touched.the_array().indices(changed.address)] = False
    if missing.any():
        index = ", ".join(map(str, np.argwhere(missing)[0].tolist()))
        raise AnswerError(
            f"{missing.sum():,} elements of {name} were never written, the first is {name}[{index}]"
        )


def _require_few(trace: Trace, name: str, enough: Enough) -> None:
    if name not in {array.name for array in trace.arrays}:
        return
    table = global_traffic(trace.only(array=name))
    for column in ("sectors", "requests"):
        found, most = table.total(column), getattr(enough, column)
        if found > most:
            worst = max(table.rows, key=lambda row: row[table.columns.index(column)])
            line, expression = (worst[table.columns.index(c)] for c in ("line", "expression"))
            raise AnswerError(
                f"the answer is right, but {found:,} {column} for {name}; {most:,} are enough. "
                f"Look at line {line}: {expression}"
            )


def _require_no_conflicts(trace: Trace) -> None:
    table = shared_traffic(trace)
    if not table.rows:
        raise AnswerError("the answer is right, but the kernel does not use shared memory")
    found, ideal = table.total("wavefronts"), table.total("ideal")
    if found > ideal:
        raise AnswerError(
            f"the answer is right, but there are bank conflicts: {found:,} wavefronts, where "
            f"{ideal:,} would do"
        )
