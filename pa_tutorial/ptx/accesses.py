"""Instructions that access memory, or the other lanes of a warp.

Source: NVIDIA, "Parallel Thread Execution ISA", chapter "Instruction Set".
"""

import operator
import re
from collections.abc import Callable

import numpy as np

from pa_tutorial.ptx.machine import Lanes, PtxFault, Step
from pa_tutorial.ptx.memory import WINDOWS
from pa_tutorial.ptx.numbers import DTYPES, size_of
from pa_tutorial.ptx.operands import Operands, Read, parts_of
from pa_tutorial.ptx.parsing import Instruction
from pa_tutorial.simt.gpus import WARP_SIZE

ATOMIC = {
    **{"add": operator.add, "min": min, "max": max, "exch": lambda old, new: new},
    **{"and": operator.and_, "or": operator.or_, "xor": operator.xor},
}
SPACES = ("global", "shared", "local", "param")
PLACE = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?(?:0x)?[0-9A-Fa-f]+))?\s*\]")


class Accesses(Operands):
    """Translates the accesses of one machine."""

    # Warps ------------------------------------------------------------------------------------

    def _shuffle(self, number: int, one: Instruction) -> Step:
        mode = one.words[2]
        target, _, there = one.operands[0].partition("|")
        value, b, c, members = (self.read(operand, "u32") for operand in one.operands[1:5])
        write, lane = self.write(target, "u32"), self.machine.lane
        write_there = self.write(there, "pred") if there else None

        def run(lanes: Lanes) -> None:
            lanes = self.machine.meet(number, members(), lanes)
            if not lanes.mask.any():
                return
            distance, clamp = (np.asarray(read()).astype(np.int64) for read in (b, c))
            segment, clamp = clamp >> 8 & 31, clamp & 31
            last = lane & segment | clamp & ~segment
            from_ = {
                "up": lane - distance,
                "down": lane + distance,
                "bfly": lane ^ distance,
                "idx": lane & segment | distance & ~segment & 31,
            }[mode]
            inside = from_ >= last if mode == "up" else from_ <= last
            threads = np.arange(len(lane)) - lane + np.where(inside, from_, lane)
            absent = lanes.mask & ~lanes.mask[threads]
            if "sync" in self.machine.checks and absent.any():
                raise PtxFault("sync", "a lane reads from one that isn't here", one)
            write(np.broadcast_to(value(), len(lane))[threads], lanes)
            if write_there:
                write_there(inside, lanes)

        return run

    def _active_mask(self, one: Instruction) -> Step:
        write = self.write(one.operands[0], "u32")
        return lambda lanes: write(self._ballot(lanes.mask), lanes)

    def _ballot(self, holds: np.ndarray) -> np.ndarray:
        bits = self.machine.warps(holds).astype(np.uint64) << np.arange(WARP_SIZE, dtype=np.uint64)
        return np.repeat(bits.sum(axis=1).astype(np.uint32), WARP_SIZE)

    def _vote(self, number: int, one: Instruction) -> Step:
        mode, type_ = one.words[2], one.words[-1]
        holds, members = self.predicate(one.operands[1]), self.read(one.operands[2], "u32")
        write = self.write(one.operands[0], "u32" if mode == "ballot" else type_)

        def run(lanes: Lanes) -> None:
            lanes = self.machine.meet(number, members(), lanes)
            if not lanes.mask.any():
                return
            yes = self._ballot(np.broadcast_to(holds(), len(lanes.mask)) & lanes.mask)
            no = self._ballot(~np.broadcast_to(holds(), len(lanes.mask)) & lanes.mask)
            results = {
                "ballot": yes,
                "any": yes != 0,
                "all": no == 0,
                "uni": (yes == 0) | (no == 0),
            }
            write(results[mode], lanes)

        return run

    # Memory -----------------------------------------------------------------------------------

    def _address(self, operand: str) -> Read:
        """The addresses of all threads."""
        base, offset = PLACE.fullmatch(operand).groups()
        offset = int(offset or "0", 0)
        if base in self.kernel.symbols:
            number = self.offset_of(base) + offset
            places = np.full(self.machine.num_threads, number, np.int64)
            return lambda: places
        type_ = f"u{8 * self.machine.registers[base].itemsize}"
        read = self.read(base, type_)
        return lambda: read().astype(np.int64) + offset

    def _place(
        self, number: int, kind: str, space: str, operand: str, size: tuple[int, int]
    ) -> Callable:
        """A function of the lanes: the space they access, and the places in its data.

        space  "" if the addresses are generic
        size   bytes of an item, and number of items
        """
        address = self._address(operand)

        def place(lanes: Lanes) -> tuple:
            addresses = address()[lanes.mask]
            here = space or self._window(number, addresses)
            if not space or here == "global":
                addresses = addresses - WINDOWS[here]
            return self.machine.locate(number, kind, here, addresses, size, lanes)

        return place

    def _window(self, number: int, addresses: np.ndarray) -> str:
        ordered = sorted(WINDOWS.items(), key=lambda item: -item[1])
        found = {next((s for s, w in ordered if a >= w), "global") for a in addresses.tolist()}
        if len(found) > 1:
            what = f"lanes access {' and '.join(sorted(found))} memory at once"
            raise PtxFault("memory", what, self.kernel.instructions[number])
        return found.pop()

    def _load_or_store(self, number: int, one: Instruction) -> Step:
        is_store = one.opcode == "st"
        operand, data = one.operands if is_store else one.operands[::-1]
        parts = parts_of(data) if data.startswith("{") else [data]
        if "param" in one.words:
            return self._load_parameter(one, operand, parts)
        type_, dtype = one.type, DTYPES[one.type]
        kind = "write" if is_store else "read"
        place = self._place(number, kind, space_of(one), operand, (dtype.itemsize, len(parts)))
        raw = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "f" else dtype
        if is_store:
            reads = [self.read(name, type_) for name in parts]

            def store(lanes: Lanes) -> None:
                memory, places = place(lanes)
                items, first = memory.items(raw), places // dtype.itemsize
                for n, read in enumerate(reads):
                    value = np.broadcast_to(read(), len(lanes.mask))[lanes.mask]
                    items[first + n] = np.ascontiguousarray(value).view(raw)
                memory.written[places[:, None] + np.arange(dtype.itemsize * len(parts))] = True

            return store
        writes = [self.write(name, type_) for name in parts]
        values = np.zeros(self.machine.num_threads, raw)

        def load(lanes: Lanes) -> None:
            memory, places = place(lanes)
            items, first = memory.items(raw), places // dtype.itemsize
            for n, write in enumerate(writes):
                values[lanes.mask] = items[first + n]
                write(values.view(dtype), lanes)

        return load

    def _load_parameter(self, one: Instruction, operand: str, parts: list[str]) -> Step:
        name, offset = PLACE.fullmatch(operand).groups()
        first = self.kernel.parameters[name].offset + int(offset or "0", 0)
        size, dtype = size_of(one.type), DTYPES[one.type]
        bytes_ = [self.machine.parameters[first + n * size :][:size] for n in range(len(parts))]
        writes = [
            (self.write(p, one.type), b.view(dtype)[0]) for p, b in zip(parts, bytes_, strict=True)
        ]

        def run(lanes: Lanes) -> None:
            for write, value in writes:
                write(value, lanes)

        return run

    def _atomic(self, number: int, one: Instruction) -> Step:
        """One lane after another, in the order of their numbers."""
        operation = next(w for w in one.words if w in (*ATOMIC, "cas"))
        type_, dtype = one.type, DTYPES[one.type]
        if (type_ not in ("f32", "f64") and type_[0] not in "usb") or type_ == "bf16":
            raise one.unknown()
        has_result = one.opcode == "atom"
        size = dtype.itemsize, 1
        place = self._place(number, "atomic", space_of(one), one.operands[has_result], size)
        reads = [self.read(operand, type_) for operand in one.operands[has_result + 1 :]]
        write = self.write(one.operands[0], type_) if has_result else None
        old = np.zeros(self.machine.num_threads, dtype)

        def run(lanes: Lanes) -> None:
            memory, places = place(lanes)
            items = memory.items(dtype)
            values = [np.broadcast_to(read(), len(lanes.mask)) for read in reads]
            for thread, at in zip(
                np.flatnonzero(lanes.mask), places // dtype.itemsize, strict=True
            ):
                old[thread] = items[at]
                given = [value[thread] for value in values]
                if operation == "cas":
                    items[at] = given[1] if items[at] == given[0] else items[at]
                else:
                    items[at] = ATOMIC[operation](items[at], given[0])
            if write:
                write(old, lanes)

        return run


def space_of(one: Instruction) -> str:
    """The space that an instruction's name has; "" if its addresses are generic."""
    words = (word.partition("::")[0] for word in one.words)
    return next((word for word in words if word in SPACES), "")
