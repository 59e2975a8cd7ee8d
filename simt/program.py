"""A program: a kernel and the device functions that it calls, in translation."""

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType

import numpy as np
from numba.core import types as numba_types

from simt.batched_blocks import may_run_batched, run_batched, saved
from simt.blocks import run_blocks
from simt.compiled_in import COMPILED, Compiled, Use, compiled_form, content
from simt.intrinsics import FENCES
from simt.known import NOTHING
from simt.lanes import RESULT, Frame, Variable
from simt.machine import CHECKS, Machine
from simt.memory import Array
from simt.names import function_behind, names_of
from simt.records import item_type
from simt.signatures import declared
from simt.snapshots import END, Snapshot, take
from simt.source import Source, source_of
from simt.statements import Raised, Statements

Watch = int | str


class DeviceFunction:
    """A function translated for calls from a kernel.

    callee        what cuda.jit made of it, or the function itself
    compiled_for  the types of a kernel's arguments; of a device function, whose types aren't known,
                  the arguments that are functions or shapes
    earlier       the function as Numba compiled it for an earlier launch, if it did
    """

    body: Callable
    translated: Statements

    def __init__(self, callee: Callable, compiled_for: tuple[object, ...]) -> None:
        self.callee, self.compiled_for = callee, compiled_for
        self.earlier = COMPILED.get(callee, {}).get(compiled_for)
        self.source = source = source_of(function_behind(callee))
        arguments = source.tree.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise source.unknown(source.tree, "parameters with * or **")
        self.parameters = tuple(a.arg for a in arguments.args)

    def __call__(self, caller: Frame, arguments: dict[str, object]) -> object:
        variables = {name: Variable(value, caller.lanes) for name, value in arguments.items()}
        frame = Frame(caller.gang, caller.lanes, variables=variables, caller=caller)
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

    def uses(self, as_compiled: bool) -> list[Use]:
        """What is compiled into this function and into those that it calls.

        as_compiled  of a global host array, the copy that was compiled in, not what it is now
        """
        reached = [self]
        for device in reached:
            calls = dict.fromkeys(device.translated.calls)
            reached += [called for called in calls if called not in reached]
        return [
            Use(device.source.name, name, compiled_form(value))
            for device in reached
            for name, value in device.translated.uses(as_compiled).items()
        ]

    def remember(self, compiled: Compiled) -> None:
        COMPILED.setdefault(self.callee, {})[self.compiled_for] = compiled


def note_what_is_compiled_in(made: Callable) -> None:
    """For what cuda.jit made of a function with signatures, for which Numba compiles at once."""
    for_device = getattr(made, "targetoptions", {}).get("device")
    for arguments, _ in declared(made):
        options = {"collect": False, "shared_bytes": 0, "max_turns": 0, "recorder": None}
        options |= {"exited_may_skip": False, "shuffles_order_memory": False}
        machine = Machine((1, 1, 1), (1, 1, 1), CHECKS, "together", **options)
        with suppress(Exception):  # whatever it is, the launch says it
            Program(made, machine, (), (), () if for_device else arguments).require_unchanged()


class Program:
    """Translates a kernel for one launch.

    kernel  what cuda.jit made of a function, or the function itself
    watch   lines at which to take snapshots: numbers, pieces of their text, marks, or "end"
    names   variables that a snapshot keeps; empty: every number, local array and shared array
    types   of the kernel's arguments
    """

    def __init__(
        self,
        kernel: Callable,
        machine: Machine,
        watch: tuple[Watch, ...],
        names: tuple[str, ...],
        types: tuple[numba_types.Type, ...] = (),
    ) -> None:
        self.machine, self.names = machine, names
        self.watch, self.unmatched = watch, set(watch) - {END}
        self.snapshots: list[Snapshot] = []
        function = function_behind(kernel)
        self.types = types
        of_kernel = {
            name: item_type(one.dtype)
            for name, one in zip(names_of(function), types, strict=False)
            if isinstance(one, numba_types.Array)
        }
        self.dtypes = {kernel: of_kernel}  # function -> its arrays -> their types
        self.functions: dict[tuple, DeviceFunction] = {}
        self.device_arrays: dict[tuple, tuple[str, np.ndarray]] = {}  # global ones, with their name
        self.on_device: dict[tuple, Array] = {}  # the same, as the kernel sees them
        self.sources: dict[FunctionType, Source] = {}
        self.called: set[str] = set()  # functions of cuda
        self.name, self.file = function.__name__, function.__code__.co_filename
        self.kernel = self.device_function(kernel)
        codes = [function.__code__ for function in self.sources]
        unknown = set(names) - {v for c in codes for v in c.co_varnames + c.co_cellvars}
        if unknown:
            raise ValueError(f"names: {self.name} has no variable {sorted(unknown)[0]!r}")
        if self.unmatched:
            wanted = ", ".join(repr(w) for w in sorted(self.unmatched, key=str))
            marks = {m for s in self.sources.values() for found in s.marks.values() for m in found}
            there = f"; its marks: {', '.join(sorted(marks))}" if marks else ""
            raise ValueError(f"watch: no statement of {self.name} is at {wanted}{there}")

    def require_unchanged(self) -> None:
        """Raise Unsupported if something isn't what it was when Numba compiled it in; from now on,
        what is compiled in now must not change."""
        is_new = self.kernel.earlier is None
        for device in self.functions.values():
            if device.earlier:  # perhaps for another kernel, or for other types
                device.earlier.require_same(device.uses(as_compiled=not is_new), self.name)
        for device in self.functions.values():
            if not device.earlier:
                uses, arrays = device.uses(as_compiled=True), device.translated.arrays
                device.remember(Compiled(self._moment(device), uses, arrays))

    def _moment(self, device: DeviceFunction) -> str:
        """When Numba compiles a function that it hasn't compiled yet."""
        name = device.source.name
        if declared(device.callee):
            return f"{name} was decorated with its signature"
        if device is self.kernel:
            return f"{name} was first launched with arguments of these types"
        return f"{name} was first called, by {self.name}"

    def device_function(
        self, callee: Callable, functions: Mapping[str, object] = NOTHING
    ) -> DeviceFunction:
        """functions  the parameters that are functions; each set of them needs a translation"""
        key = callee, *functions.items()
        if key not in self.functions:
            compiled_for = content(key[1:]) if self.functions else self.types  # the kernel is first
            device = DeviceFunction(callee, compiled_for)
            self.functions[key], self.sources[function_behind(callee)] = device, device.source
            kept = device.earlier.arrays if device.earlier else NOTHING
            device.translated = Statements(self, callee, device.source, functions, kept)
            device.body = device.translated.body(device.source.tree.body)
        return self.functions[key]

    def run(self, arguments: dict[str, object]) -> None:
        """Runs the thread blocks. Raises what a `raise` in the kernel raises."""
        try:
            self._run(arguments)
        except Raised as raised:
            raise raised.error from None

    def _run(self, arguments: dict[str, object]) -> None:
        """Runs the thread blocks side by side if that is enough, else one after another."""
        machine, body = self.machine, self.kernel.body
        machine.is_cooperative = "cg.this_grid" in self.called
        if FENCES & self.called and machine.race:
            machine.fenced = []

        def at_end(frame: Frame) -> None:
            if END in self.watch:
                frame.lanes = frame.gang.everybody
                self.snapshots.extend(take(frame, END, END, self.names))

        if may_run_batched(machine, self.called):
            put_back = saved([*arguments.values(), *self.on_device.values()])
            if run_batched(machine, body, arguments, at_end):
                order = {index: number for number, index in enumerate(machine.indices)}
                snapshots = sorted(self.snapshots, key=lambda snapshot: order[snapshot.block])
                if machine.recorder is not None:
                    after = saved([*arguments.values(), *self.on_device.values()])
                    put_back()
                    run_blocks(machine, body, arguments, at_end, machine.recorder.blocks)
                    after()
                self.snapshots = snapshots
                return
            put_back()
            self.snapshots.clear()
        run_blocks(machine, body, arguments, at_end)

    def forget_translations(self) -> None:
        """The functions refer to the program: without this, they stay until Python searches for
        garbage."""
        self.functions.clear()
        del self.kernel

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
