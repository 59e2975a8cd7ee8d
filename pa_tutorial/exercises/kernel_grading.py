"""Grading of kernels: the right answer, no finding, and no more traffic than is needed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, OnlyIfRightError, require_written
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.par import spoken
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.exercises.texts import YOUR_CODE
from simt import Finding, Report, SimtError, Trace, global_traffic, launch, shared_traffic
from simt.gpus import WARP_SIZE
from simt.names import function_behind, names_of
from simt.tables import Table
from simt.trace import KINDS
from simt.traffic import SECTOR

BOUND = 1e-6
MOST_TURNS = 2_000  # of loops in a thread block: an endless one is stopped. Ours take up to 221
WORDS = {"sectors": "sectors", "transactions": "memory transactions"}
ITEM = 4  # bytes: all arrays are float32


@dataclass(frozen=True)
class Enough:
    """What may be spent on an array of global memory."""

    sectors: int
    transactions: int

    @classmethod
    def of(cls, num_elements: int, times_full_warps: int = 1) -> "Enough":
        """For float32 that are moved once, by so many times the transactions of full warps."""
        transactions = times_full_warps * -(-num_elements // WARP_SIZE)
        return cls(-(-num_elements * ITEM // SECTOR), transactions)


@dataclass(frozen=True)
class Task:
    """One launch of a kernel: kernel[grid, num_threads](out, *inputs), with out in float32.

    inputs          arrays, and numbers as NumPy scalars
    expected        [shape of out]; NaN: an element that must not be written
    enough          number of an argument (out is 0) -> what all thread blocks may spend on it
    busy_warps      so many warps must write to out
    most_shuffles   None: any number
    through_shared  every element of out must pass through shared memory, without bank conflicts
    shared_bytes    size of the dynamic shared memory
    also            what more is asked of an answer that is right; it raises AnswerError
    hints           what a finding's check or kind (simt.Finding) means here: "race" -> a hint
    bound           the largest error that passes; 0: the answer must be equal
    first           the first case, whose par is told before anything is written; None: this one
    """

    num_threads: int
    inputs: tuple[np.ndarray | np.generic, ...]
    expected: np.ndarray
    enough: Mapping[int, Enough] = field(default_factory=dict)
    busy_warps: int = 1
    most_shuffles: int | None = None
    through_shared: bool = False
    shared_bytes: int = 0
    also: Callable[[Trace], None] | None = None
    grid: tuple[int, ...] = (1,)
    hints: Mapping[str, str] = field(default_factory=dict)
    bound: float = BOUND
    first: "Task | None" = None

    @property
    def wanted(self) -> np.ndarray:
        """[shape of out] the elements that must be written."""
        return ~np.isnan(self.expected)

    def only_wanted(self, out: np.ndarray) -> dict[str, Tensor]:
        return {"out": torch.from_numpy(np.where(self.wanted, out, np.float32(0)))}

    def launched(self, kernel: Callable, **options: object) -> tuple[Report, np.ndarray]:
        """One launch with all accesses traced, and out: NaN where nothing was written."""
        out = np.full(self.expected.shape, np.nan, np.float32)
        arguments = self.grid, self.num_threads, out, *self.inputs
        fixed = {"shared_bytes": self.shared_bytes, "trace": "all", "max_turns": MOST_TURNS}
        options = {**fixed, "unwritten": names_of(function_behind(kernel))[0], **options}
        return launch(kernel, *arguments, **options), out

    def run(self, kernel: Callable) -> dict[str, Tensor]:
        """The output, 0 where nothing is wanted.

        Raises AnswerError for a kernel that leaves a part of out unwritten, or writes another
        part, or changes an input; OnlyIfRightError if it spends too much; SimtError for a finding.
        """
        before = [array.copy() for array in self.inputs]
        names = names_of(function_behind(kernel))
        try:
            report, out = self.launched(kernel)
        except SimtError as error:
            self._refuse(error.finding)
            raise
        trace = report.trace
        _require_all_written(trace, names[0], self.wanted, self.par(names))
        if self.most_shuffles and not len(trace.only(kind="shuffle")):
            raise AnswerError("there is no shuffle: no lane learns what another has found so far")
        _require_numbers(out, names[0], self.wanted)
        pairs = zip(self.inputs, before, strict=True)
        if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            raise AnswerError("it changed one of its inputs; it must only read them")
        found = self.only_wanted(out)
        try:
            self._require_little(trace, names)
        except AnswerError as error:
            raise OnlyIfRightError(str(error), found) from None
        return found

    def without_expected(self) -> "Task":
        """The same launch without its right numbers: whoever compares has them."""
        blank = np.where(self.wanted, np.float32(0), np.float32(np.nan))
        return replace(self, expected=blank, first=self.first and self.first.without_expected())

    def _refuse(self, finding: Finding) -> None:
        """Raise AnswerError if a hint of the exercise says more than the simulator's advice."""
        if hint := self.hints.get(finding.kind, self.hints.get(finding.check)):
            raise AnswerError(f"{finding.advised('')}\ncheck this first: {hint}") from None

    def par(self, names: tuple[str, ...]) -> str:
        """What may be spent, in a sentence for whoever hasn't begun; empty if that is no matter."""
        first = self.first or self
        numbers = {
            f"{names[number]} {unit}": getattr(enough, unit)
            for number, enough in first.enough.items()
            for unit in ("transactions", "sectors")
        }
        if first.most_shuffles is not None:
            numbers["shuffles"] = first.most_shuffles
        return f". Par, required, in the first case: {spoken(numbers)}" if numbers else ""

    def _require_little(self, trace: Trace, names: tuple[str, ...]) -> None:
        for number, most in self.enough.items():
            require_few(trace, names[number], most)
        busy = len(np.unique(trace.only(array=names[0], kind="write").records.warp))
        if busy < self.busy_warps:
            warps = f"{busy} of {trace.num_warps} warps"
            raise AnswerError(f"the answer is right, but only {warps} write to {names[0]}")
        shuffles, most = trace.only(kind="shuffle").num_instructions, self.most_shuffles
        if most is not None and shuffles > most:
            raise AnswerError(f"the answer is right, with {shuffles} shuffles; {_enough(most)}")
        if self.through_shared:
            _require_shared(trace, self.expected.size)
        if self.also is not None:
            self.also(trace)


def trial(
    name: str,
    isolates: str,
    meaning: str,
    task: Task,
    axes: tuple[str, ...],
    kernel_of: Callable[[Callable], Callable] = lambda answer: answer,
) -> Trial:
    """kernel_of: from an answer that is no kernel, but makes one, to a kernel."""
    launched = task.without_expected()
    return Trial(
        name=name,
        isolates=isolates,
        meaning=meaning,
        run=lambda answer: launched.run(require_written(kernel_of(answer))),
        references={"NumPy": lambda: task.only_wanted(task.expected)},
        bounds={"out": task.bound},
        axes=axes,
    )


def on_tasks(
    cases: Sequence[tuple],
    task: Callable[..., Task],
    axes: tuple[str, ...],
    is_made: bool = False,
) -> Callable[[int], list[Trial]]:
    """The trials of a kernel, from a table.

    cases    (name, what it isolates, what its failure means, *sizes) each
    task     task(draw, *sizes)
    is_made  the answer is no kernel, it makes one: answer(*sizes)
    """

    def one(words: Sequence[str], sizes: Sequence, task: Task) -> Trial:
        made = {"kernel_of": lambda make: make(*sizes)} if is_made else {}
        return trial(*words, task, axes, **made)

    def trials(draw: int) -> list[Trial]:
        tasks = [task(draw, *case[3:]) for case in cases]
        pairs = zip(cases, tasks, strict=True)
        return [one(case[:3], case[3:], replace(own, first=tasks[0])) for case, own in pairs]

    return trials


def warm_up(
    kernel: Callable,
    cases: Sequence[tuple],
    expected: Callable[..., np.ndarray],
    inputs: Callable[..., tuple] = lambda a, rng: (a,),
    axes: tuple[str, ...] = ("element",),
    is_drawn: bool = True,
    hints: Mapping[str, str] | None = None,
    **options: Any,
) -> Exercise:
    """A kernel of one to three lines. The notebook draws its first case, if is_drawn.

    cases     (name, what it isolates, what its failure means, grid, threads, shape of a) each
    expected  expected(*inputs) -> out
    inputs    inputs(a, rng) -> the arrays of the launch; a holds different whole numbers
    hints     those of Task; the others mean what the first case's failure means
    options   those of Task
    """
    options["hints"] = {"race": cases[0][2], "memory": cases[0][2], **(hints or {})}

    def task(draw: int, grid: tuple[int, ...], num_threads: int, shape: tuple[int, ...]) -> Task:
        rng, size = seeded(num_threads, draw), math.prod(shape)
        end = max(100, size + 10) if is_drawn else 1_000  # a picture has room for two digits
        a = rng.permutation(np.arange(10, end, dtype=np.float32))[:size]
        arrays = inputs(a.reshape(shape), rng)
        return Task(num_threads, arrays, expected(*arrays), grid=grid, bound=0, **options)

    def first() -> Task:
        return task(0, *cases[0][3:])

    trials, drawn = on_tasks(cases, task, axes), first if is_drawn else None
    return Exercise(kernel, trials, is_warm_up=True, drawn=drawn)


def require_few(trace: Trace, name: str, enough: Enough) -> None:
    if name not in {array.name for array in trace.arrays}:
        return
    table = global_traffic(trace.only(array=name))
    for column in ("sectors", "transactions"):
        found, most = table.total(column), getattr(enough, column)
        if found > most:
            worst = max(table.rows, key=lambda row: row[table.columns.index(column)])
            raise AnswerError(
                f"the answer is right, but {found:,} {WORDS[column]} for {name}; {_enough(most)}. "
                f"{_where(table, worst)}"
            )


def require_atomics(trace: Trace, most: int, why: str) -> None:
    """most: lanes that may do an atomic operation. why: what is bad about more."""
    found = len(trace.only(kind="atomic"))
    if found > most:
        raise AnswerError(f"the answer is right, with {found} atomic operations: {why}")


def require_shared_transactions(trace: Trace, kind: str, most: int) -> None:
    """kind: "read" or "write"; a transaction is an instruction of one warp."""
    found = trace.only(space="shared", kind=kind).num_instructions
    if found > most:
        words = {"read": "reads of", "write": "writes to"}[kind]
        raise AnswerError(
            f"the answer is right, with {found} {words} shared memory, counted for each warp; "
            f"{_enough(most)}"
        )


def require_barriers(trace: Trace, most: int) -> None:
    found = trace.only(kind="barrier").num_instructions // trace.num_warps
    if found > most:
        raise AnswerError(f"the answer is right, with {found} barriers; {_enough(most)}")


def _enough(most: int) -> str:
    return f"{most:,} {'is' if most == 1 else 'are'} enough"


def _require_all_written(trace: Trace, name: str, wanted: np.ndarray, par: str = "") -> None:
    """The elements that are wanted, and no others. par: what is said of an unwritten kernel."""
    if name not in {array.name for array in trace.arrays}:
        is_stub = any(YOUR_CODE in line for s in trace.sources for line in s.lines.values())
        why = (
            f"not written yet{par}" if is_stub else "does a thread reach a line that writes to it?"
        )
        raise AnswerError(f"the kernel wrote nothing into {name}: {why}")
    written = np.zeros(wanted.shape, bool)
    touched = trace.only(array=name)
    changed = touched.records[touched.records.kind != KINDS.index("read")]
    for offset in range(0, int(changed.num_bytes.max(initial=0)), ITEM):  # a vector has several
        element = changed.address[changed.num_bytes > offset] + offset
        written[touched.the_array().indices(element)] = True
    missing, excess = wanted & ~written, written & ~wanted
    if missing.any():
        count = f"{missing.sum():,} elements of {name}"
        first = _first(name, missing)
        raise AnswerError(f"{count} were never written, the first is {first}")
    if excess.any():
        raise AnswerError(f"{_first(name, excess)} was written; it must stay as it is")


def _require_numbers(out: np.ndarray, name: str, wanted: np.ndarray) -> None:
    bad = np.isnan(out) & wanted
    if bad.any():
        first = _first(name, bad)
        why = "0 was divided by 0, or something was read that isn't part of the sequence"
        raise AnswerError(f"{first} is NaN: {why}")


def _first(name: str, where: np.ndarray) -> str:
    index = ", ".join(map(str, np.argwhere(where)[0].tolist()))
    return f"{name}[{index}]"


def _where(table: Table, row: tuple) -> str:
    line, expression = (row[table.columns.index(c)] for c in ("line", "expression"))
    return f"Look at line {line}: {expression}"


def _require_shared(trace: Trace, num_elements: int) -> None:
    reads = trace.only(space="shared", kind="read").records
    if reads.num_bytes.sum(dtype=int) < num_elements * ITEM:
        raise AnswerError("the answer is right, but not all of it goes through shared memory")
    table = shared_traffic(trace)
    found, ideal = table.total("wavefronts"), table.total("ideal")
    if found > ideal:
        worst = max(table.rows, key=lambda row: row[table.columns.index("degree")])
        raise AnswerError(
            f"the answer is right, but there are bank conflicts: {found:,} wavefronts, where "
            f"{ideal:,} would do. {_where(table, worst)}"
        )
