"""What a simulation found, and what it was asked to look at."""

import ast
from dataclasses import dataclass, field

import numpy as np

from simt.snapshots import END, Index, Snapshot
from simt.source import Site
from simt.trace import Trace
from simt.tracebacks import ShortInNotebooks

# What to ask oneself about a finding.
ADVICE = {
    "init": "Should this thread read there at all? If so, it needs a value first.",
    "race": "Is a barrier missing between the two, or should only one thread do this?",
    "race within a line": "Is the index right, so that each thread has elements of its own? If "
    "threads share one, is a barrier missing, or cuda.atomic?",
    "race of two writes": "Is the index right? If so, should only one thread do this, or is a "
    "barrier missing? It's a race even if both write the same value.",
    "race between blocks": "Is the index right? If so, only atomic operations help, or a second "
    "launch for one of the two. If they hand over other data, both sides need a fence "
    "(cuda.threadfence), too.",
    "sync": "Can the barrier be outside the branch or loop, where every thread reaches it?",
    "sync in a warp": "Can all lanes call it, and those that don't need the result ignore it?",
    "misaligned atomic": "Its address must be a multiple of its size. That of each field is one if "
    "the type of the records is made with align=True.",
    "misaligned": "A vector begins at a multiple of its size. Check the index and the slice.",
}


@dataclass(frozen=True)
class Finding:
    """One mistake in a kernel.

    check      "memory", "init", "race" or "sync"
    what       the mistake in words
    site       the place in the kernel
    block      index of the thread block
    thread     number of the thread in its block
    other_site, other_block, other_thread   the second party of a race or of a barrier
    array      name of the array; index, shape   where in it
    is_dynamic    whether the array is the dynamic shared memory
    instruction, other_instruction   their numbers in the trace: the access or barrier itself, and
               the other access of a race. An access without a lane in bounds isn't recorded; then
               it is the last instruction that the thread's warp had recorded. None: the thread
               block isn't traced, or its warp hadn't done anything yet
    """

    check: str
    what: str
    site: Site
    block: Index
    thread: int
    other_site: Site | None = None
    other_block: Index | None = None
    other_thread: int | None = None
    array: str | None = None
    index: Index | None = None
    shape: Index | None = None
    is_dynamic: bool = False
    instruction: int | None = None
    other_instruction: int | None = None

    def __str__(self) -> str:
        return self.advised(ADVICE.get(self.kind, ""))

    def advised(self, advice: str) -> str:
        """In words, with this advice in place of what usually helps."""
        lines = [f"{self.check}: {self.what}", *_quote(self.site)]
        if self.other_site and self.other_site != self.site:
            lines += _quote(self.other_site)
        if advice:
            lines.append(f"  {advice}")
        return "\n".join(lines + _outside(self))

    @property
    def kind(self) -> str:
        """The check, or more exactly what it found."""
        if self.check == "race" and self.other_block != self.block:
            return "race between blocks"
        if self.check == "race" and " writes " in self.what and " wrote " in self.what:
            return "race of two writes"
        if self.check == "race" and self.other_site and self.other_site.code == self.site.code:
            return "race within a line"
        if self.check == "sync" and "barrier" not in self.what:
            return "sync in a warp"
        if "misaligned" in self.what:
            return "misaligned atomic" if "atomically" in self.what else "misaligned"
        return self.check


def _quote(site: Site) -> list[str]:
    return [f"  line {site.line} of {site.function}:  {site.code}"]


NO_SHARED = (
    "  {} has no elements. If it is dynamic shared memory, the launch gives its size: "
    "kernel[grid, block, 0, shared_bytes]"
)


def _outside(finding: Finding) -> list[str]:
    """For an index out of bounds: which one, what it was computed from, and the usual cause."""
    if finding.check != "memory" or not finding.index or not finding.site.source:
        return []
    if finding.shape == (0,):
        return [NO_SHARED.format(finding.array)]
    access = ast.parse(finding.site.text, mode="eval").body
    if not isinstance(access, ast.Subscript):
        return []
    is_tuple = isinstance(access.slice, ast.Tuple)
    expressions = access.slice.elts if is_tuple else [access.slice]
    for axis in zip(expressions, finding.index, finding.shape, strict=False):
        expression, index, size = axis
        if index != ":" and not 0 <= index < size:
            what = f"{ast.unparse(expression)} is {index}; it must be 0 to {size - 1}"
            cause = _cause(index, size) + (SWAPPED if _fits_swapped(finding, index, size) else "")
            if finding.is_dynamic and index >= size:
                cause = TOO_SMALL
            return [f"  {what}. {cause}", *_origins(expression, finding.site)]
    return []


def _origins(expression: ast.expr, site: Site) -> list[str]:
    """The lines that assigned the variables of an expression."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    given = (site.source.given(name, site.line) for name in names)
    lines = sorted({statement.lineno for statement in given if statement})
    return [f"  line {line} of {site.function}:  {site.source.line(line)}" for line in lines]


TOO_SMALL = (
    "Either the index is wrong, or the launch asks for too little dynamic shared memory: "
    "kernel[grid, block, 0, shared_bytes]."
)
SWAPPED = " Or two indices are swapped."


def _fits_swapped(finding: Finding, index: int, size: int) -> bool:
    """Whether an index that is outside its axis, and another one, would fit in each other's."""
    others = zip(finding.index, finding.shape, strict=False)
    return any(i != ":" and 0 <= i < size and 0 <= index < n for i, n in others)


def _cause(index: int, size: int) -> str:
    if index < 0:
        return "A negative index counts from the end, as in Python. Should this thread skip it?"
    if index == size:
        return "Usually a bound is off by one, or a `%` or an `if` is missing."
    return "Usually it counts something other than this axis: a `//`, a `%` or an `if` is missing."


class SimtError(ShortInNotebooks):
    """A check found a mistake in the kernel; `finding` says what and where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Report:
    """What `launch` returns. `print(report)` says it in words.

    findings   empty if the checks found nothing
    snapshots  those that `watch` asked for, in the order in which they were taken
    trace      what the thread blocks that `trace` asked for did; None: none was traced
    """

    kernel: str
    grid: Index
    block: Index
    order: str
    checks: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    trace: Trace | None = None

    @property
    def clean(self) -> bool:
        return not self.findings

    def at(self, where: int | str = END, block: Index | int | None = None) -> list[Snapshot]:
        """The snapshots at a line (its number, a piece of its text or its mark), or at the end.

        block  only this thread block's
        """
        if isinstance(block, int):
            block = (block, 0, 0)
        return [
            snapshot
            for snapshot in self.snapshots
            if snapshot.matches(where) and (block is None or snapshot.block == tuple(block))
        ]

    def rows(self, where: int | str, *names: str) -> np.ndarray:
        """Scalar variables as a table: one entry per thread and snapshot of a line.

        Fields: block (number), thread, and the names. Threads without a value are left out.
        """
        if {"block", "thread"} & set(names):
            raise ValueError("block and thread are columns already; read such a variable with at()")
        parts = []
        for snapshot in self.at(where):
            columns = [np.ma.asarray(snapshot[name]) for name in names]
            arrays = [n for n, c in zip(names, columns, strict=True) if c.ndim > 1]
            if arrays:
                raise ValueError(f"{arrays[0]} is an array; read it with at()")
            there = ~np.any([np.ma.getmaskarray(c) for c in columns], axis=0)
            numbers = np.full(len(snapshot.threads), self._block_number(snapshot.block))
            parts.append(
                [c[there] for c in (numbers, snapshot.threads, *(c.data for c in columns))]
            )
        if not parts:
            raise ValueError(f"nothing was watched at {where!r}")
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return np.rec.fromarrays(joined, names=("block", "thread", *names))

    def _block_number(self, block: Index) -> int:
        return int(np.ravel_multi_index(block[::-1], self.grid[::-1]))

    def __str__(self) -> str:
        size = " x ".join(map(str, self.block)).removesuffix(" x 1").removesuffix(" x 1")
        num_blocks = int(np.prod(self.grid))
        blocks = "1 thread block" if num_blocks == 1 else f"{num_blocks} thread blocks"
        head = f"{self.kernel}: {blocks} of {size} threads"
        checks = ", ".join(self.checks) or "nothing"
        if self.clean:
            return f"{head}; checked {checks}: nothing found"
        count = len(self.findings)
        found = f"{head}; checked {checks}: {count} finding{'s' if count > 1 else ''}"
        return "\n".join([found, *map(str, self.findings)])
