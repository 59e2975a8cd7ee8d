"""What an instruction reads and writes: registers, parts of them, constants, arrays' addresses.

Operands are looked up once, when the instruction is translated. All threads compute, and only the
lanes' results are kept, unless the register is a scratch register.
"""

from collections.abc import Callable, Mapping

import numpy as np

from simt.lanes import Lanes
from simt.ptx import numbers
from simt.ptx.machine import Machine, Step
from simt.ptx.memory import WINDOWS
from simt.ptx.numbers import DTYPES, literal
from simt.ptx.parsing import Instruction
from simt.ptx.types import types_of_operands

Read = Callable[[], np.ndarray]
Write = Callable[[np.ndarray, Lanes], None]


class Fixed:
    """Reads an array that is always the same, though not what is in it; or a constant, as an array
    without axes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __call__(self) -> np.ndarray:
        return self.array


class Operands:
    """The operands of one machine's instructions.

    places  variable -> its address, within its space unless that is global memory
    """

    def __init__(self, machine: Machine, addresses: Mapping[str, int]) -> None:
        """addresses  of what has no name in the text, by what stands there"""
        self.machine, self.kernel, self.places = machine, machine.kernel, dict(addresses)
        self.places |= {name: one.offset for name, one in self.kernel.variables.items()}
        for name, start, _ in machine.memory["global"].arrays:
            if name in self.kernel.arrays:
                self.places[name] = WINDOWS["global"] + start

    def read(self, operand: str, type_: str) -> Read:
        """The operand as numbers of a type: an array per thread, or one number for all."""
        dtype = DTYPES[type_]
        if numbers.narrow(type_):
            bits = self.read(operand, f"b{8 * dtype.itemsize}")
            return lambda: numbers.decoded(bits(), type_)
        if operand in self.kernel.registers:
            return self._read_register(operand, type_)
        if operand in self.machine.special:  # they change from thread block to thread block
            return lambda: np.asarray(self.machine.special[operand]).astype(dtype)
        is_whole = dtype.itemsize == 8 or not operand.isdecimal()
        place = self.places.get(operand) if is_whole else None
        return Fixed(np.asarray(literal(operand, dtype) if place is None else dtype.type(place)))

    def _read_register(self, name: str, type_: str) -> Read:
        raw, dtype = self.machine.registers[name], DTYPES[type_]
        if raw.itemsize > dtype.itemsize:  # its low bits
            return lambda: raw.astype(f"u{dtype.itemsize}").view(dtype)
        view = self._view(name, type_)
        return Fixed(view) if view.dtype == dtype else lambda: view.astype(dtype)

    def predicate(self, operand: str) -> Read:
        value = self.read(operand.lstrip("!"), "pred")
        return (lambda: ~value()) if operand.startswith("!") else value

    def write(self, operand: str, type_: str) -> Write:
        """Keeps the lanes' results in a register. `_` takes them and forgets them."""
        if operand == "_":
            return lambda _value, _lanes: None
        if numbers.narrow(type_):
            write_bits = self.write(operand, f"b{8 * DTYPES[type_].itemsize}")
            return lambda value, lanes: write_bits(numbers.encoded(value, type_), lanes)
        view = self._view(operand, type_)
        if operand in self.machine.registers.scratch:
            return lambda value, _lanes: np.copyto(view, value, casting="unsafe")

        def write(value: np.ndarray, lanes: Lanes) -> None:
            np.copyto(view, value, where=lanes.everyone or lanes.flags, casting="unsafe")

        return write

    def _view(self, register: str, type_: str) -> np.ndarray:
        """The register as numbers, which may be integers of another width than the type's."""
        raw, dtype = self.machine.registers[register], DTYPES[type_]
        if raw.dtype == bool or raw.itemsize == dtype.itemsize:
            return raw.view(dtype)
        return raw.view(f"{'i' if dtype.kind == 'i' else 'u'}{raw.itemsize}")

    def _result(self, target: str, type_: str, function: Callable, *reads: Read) -> Step:
        """The step that writes function(*values) to a register."""
        step = self._in_place(target, type_, function, *reads)
        if step is not None:
            return step
        write = self.write(target, type_)

        def run(lanes: Lanes) -> None:
            write(function(*[read() for read in reads]), lanes)

        return run

    def _move(self, target: str, type_: str, read: Read) -> Step:
        """Numbers that are converted, at most."""
        write = self.write(target, type_)
        return lambda lanes: write(read(), lanes)

    def _in_place(self, target: str, type_: str, function: Callable, *reads: Read) -> Step | None:
        """The same in one call of NumPy, for a function that can write where it is told to."""
        is_simple = isinstance(function, np.ufunc) and all(isinstance(r, Fixed) for r in reads)
        if not is_simple or target == "_" or numbers.narrow(type_):
            return None
        view, values = self._view(target, type_), [read.array for read in reads]
        if function(*values).dtype != view.dtype:
            return None
        if target in self.machine.registers.scratch:
            return lambda _lanes: function(*values, out=view)

        def run(lanes: Lanes) -> None:
            if lanes.everyone:
                function(*values, out=view)
            else:
                np.copyto(view, function(*values), where=lanes.flags)

        return run

    def _reads(self, one: Instruction, type_: str) -> list[Read]:
        return [self.read(operand, type_) for operand in one.operands[1:]]

    def _typed_reads(self, one: Instruction) -> list[Read]:
        """The same, each in the type that the table of types has for it."""
        return list(map(self.read, one.operands[1:], types_of_operands(one.words)[1:]))


def is_constant(read: Read) -> bool:
    return isinstance(read, Fixed) and read.array.ndim == 0


def parts_of(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]
