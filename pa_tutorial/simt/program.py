"""A program: a kernel and the device functions that it calls, in translation."""

import ast
from collections.abc import Callable, Mapping
from math import isnan
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

import numpy as np

from pa_tutorial.simt.batched_blocks import may_run_batched, run_batched, saved
from pa_tutorial.simt.blocks import run_blocks
from pa_tutorial.simt.intrinsics import FENCES
from pa_tutorial.simt.known import NOTHING
from pa_tutorial.simt.lanes import RESULT, Frame, Variable
from pa_tutorial.simt.machine import Machine
from pa_tutorial.simt.snapshots import END, Snapshot, take
from pa_tutorial.simt.source import Source, Unsupported, source_of
from pa_tutorial.simt.statements import Statements

Watch = int | str
# kernel -> the types of its arguments -> the numbers that were compiled in
NUMBERS: WeakKeyDictionary = WeakKeyDictionary()
NESTED = ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class DeviceFunction:
    """A function translated for calls from a kernel."""

    def __init__(self, source: Source) -> None:
        self.source, self.body = source, None
        _refuse_nested(source)
        arguments = source.tree.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise source.unknown(source.tree, "parameters with * or **")
        self.parameters = tuple(a.arg for a in arguments.args)

    def __call__(self, caller: Frame, arguments: dict[str, object]) -> object:
        variables = {name: Variable(value, caller.lanes) for name, value in arguments.items()}
        frame = Frame(caller.gang, caller.lanes, variables=variables)
        self.body(frame)
        returned = frame.variables.get(RESULT)
        if returned is None:
            return None
        if not returned.holders.covers(caller.lanes):
            if returned.value is None:
                return None
            raise self.source.unsupported(
                self.source.tree, "some lanes return a value and others return none"
            )
        return returned.read(caller.lanes)


def _refuse_nested(source: Source) -> None:
    """Raise Unsupported for code inside this function that Python compiles on its own."""
    for node in (node for statement in source.tree.body for node in ast.walk(statement)):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            what = f"a function inside {source.name}; define it before, with @cuda.jit(device=True)"
            raise source.unknown(node, what)
        if isinstance(node, NESTED):
            raise source.unknown(node, f"a {type(node).__name__} in a kernel")


class Program:
    """Translates a kernel for one launch.

    watch   lines at which to take snapshots: numbers, pieces of their text, marks, or "end"
    names   variables that a snapshot keeps; empty: every number, local array and shared array
    dtypes  the dtypes of the kernel's array arguments, by name
    """

    def __init__(
        self,
        kernel: FunctionType,
        machine: Machine,
        watch: tuple[Watch, ...],
        names: tuple[str, ...],
        dtypes: Mapping[str, np.dtype] = NOTHING,
    ) -> None:
        self.machine, self.names = machine, names
        self.watch, self.unmatched = watch, set(watch) - {END}
        self.snapshots: list[Snapshot] = []
        self.dtypes = {(kernel, name): dtype for name, dtype in dtypes.items()}
        self.functions: dict[tuple, DeviceFunction] = {}
        self.sources: dict[FunctionType, Source] = {}
        self.called: set[str] = set()  # functions of cuda
        self.numbers: dict[tuple[CodeType, str], int | float] = {}  # global ones that are used
        self.file = kernel.__code__.co_filename
        self.kernel = self.device_function(kernel)
        unknown = set(names) - {v for f in self.sources for v in f.__code__.co_varnames}
        if unknown:
            raise ValueError(f"names: {kernel.__name__} has no variable {sorted(unknown)[0]!r}")
        if self.unmatched:
            wanted = ", ".join(repr(w) for w in sorted(self.unmatched, key=str))
            marks = {m for s in self.sources.values() for found in s.marks.values() for m in found}
            there = f"; its marks: {', '.join(sorted(marks))}" if marks else ""
            raise ValueError(f"watch: no statement of {kernel.__name__} is at {wanted}{there}")

    def require_compiled_numbers(self, kernel: FunctionType, types: tuple[object, ...]) -> None:
        """Raise Unsupported if a global number isn't what it was at the first launch with these
        types, which is when Numba compiles: a GPU would go on with the old one."""
        compiled = NUMBERS.setdefault(kernel, {}).setdefault(types, self.numbers)
        for place, now in self.numbers.items():
            first, name = compiled.get(place, now), place[1]
            if first != now and not (isnan(first) and isnan(now)):
                raise Unsupported(
                    f"{name} is {now}, and was {first} when {kernel.__name__} was first launched "
                    "with arguments of these types. Numba compiled it then, so a GPU would still "
                    f"use {first}. Define the kernel again, or pass {name} as an argument."
                )

    def device_function(
        self, function: FunctionType, functions: Mapping[str, object] = NOTHING
    ) -> DeviceFunction:
        """functions  the parameters that are functions; each set of them needs a translation"""
        key = function, *functions.items()
        if key not in self.functions:
            source = self.sources[function] = source_of(function)
            self.functions[key] = device = DeviceFunction(source)
            device.body = Statements(self, function, source, functions).body(source.tree.body)
        return self.functions[key]

    def run(self, arguments: dict[str, object]) -> None:
        """Runs the thread blocks side by side if that is enough, else one after another."""
        machine, body = self.machine, self.kernel.body
        if FENCES & self.called and machine.race:
            machine.fenced = []

        def at_end(frame: Frame) -> None:
            if END in self.watch:
                frame.lanes = frame.gang.everybody
                self.snapshots.extend(take(frame, END, END, self.names))

        if may_run_batched(machine, self.called):
            put_back = saved(arguments)
            if run_batched(machine, body, arguments, at_end):
                order = {index: number for number, index in enumerate(machine.indices)}
                snapshots = sorted(self.snapshots, key=lambda snapshot: order[snapshot.block])
                if machine.recorder is not None:
                    after = saved(arguments)
                    put_back()
                    run_blocks(machine, body, arguments, at_end, machine.recorder.blocks)
                    after()
                self.snapshots = snapshots
                return
            put_back()
            self.snapshots.clear()
        run_blocks(machine, body, arguments, at_end)

    # Looking inside ---------------------------------------------------------------------------

    def watched(self, source: Source, node: ast.stmt, step: Callable) -> Callable:
        """The step, with a snapshot before it if its line is watched."""
        line, text = node.lineno, source.line(node.lineno)
        marks = source.marks.get(node, ()) if self.watch else ()
        of_kernel = source.file == self.file  # a number means a line of the kernel's own file
        hits = {
            w
            for w in self.watch
            if (of_kernel and w == line)
            or w in marks
            or (isinstance(w, str) and w != END and w in text)
        }
        self.unmatched -= hits
        if not hits:
            return step

        def run(frame: Frame) -> None:
            self.snapshots.extend(take(frame, line, text, self.names, marks))
            step(frame)

        return run
