"""PTX instructions as Python functions.

A Translator makes a Step of an instruction: a function that executes it for the lanes it is given.
Operands are looked up once, when the instruction is translated. All threads compute, and only the
lanes' results are kept.

Source: NVIDIA, "Parallel Thread Execution ISA", chapter "Instruction Set".
"""

import operator
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from pa_tutorial.ptx import numbers
from pa_tutorial.ptx.machine import DONE, Lanes, Machine, PtxFault, Step
from pa_tutorial.ptx.memory import WINDOWS
from pa_tutorial.ptx.numbers import DTYPES, WIDER, size_of
from pa_tutorial.ptx.parsing import Instruction, PtxError
from pa_tutorial.simt.gpus import WARP_SIZE

Read = Callable[[], np.ndarray]
Write = Callable[[np.ndarray, Lanes], None]

COMPARISONS = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal},
    **{"hi": np.greater, "hs": np.greater_equal},
}
JOINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
INTEGER = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c},
    **{"min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs},
    **{"div": numbers.quotient, "rem": numbers.remainder},
}
FLOAT = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": numbers.fma},
    **{"mad": numbers.fma, "min": np.fmin, "max": np.fmax, "neg": np.negative, "abs": np.abs},
    **{"div": np.divide, "rcp": np.reciprocal, "sqrt": np.sqrt, "ex2": numbers.exp2},
    **{"rsqrt": lambda a: 1 / np.sqrt(a), "lg2": np.log2, "tanh": np.tanh},
    **{"sin": np.sin, "cos": np.cos},
}
BITS = {
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert},
    **{"shl": numbers.shifted_left, "shr": numbers.shifted_right},
    **{"popc": numbers.count_ones, "clz": numbers.count_leading_zeros},
    **{"lop3": numbers.lut3, "prmt": numbers.permuted_bytes},
    **{"bfe": numbers.bits_of, "bfi": numbers.with_bits},
}
ATOMIC = {
    **{"add": operator.add, "min": min, "max": max, "exch": lambda old, new: new},
    **{"and": operator.and_, "or": operator.or_, "xor": operator.xor},
}
SPACES = ("global", "shared", "local", "param")
NOTHING_TO_DO = ("membar", "fence", "nanosleep", "pragma")
PLACE = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?(?:0x)?[0-9A-Fa-f]+))?\s*\]")


def do_nothing(_lanes: Lanes) -> None:
    pass


class Translator:
    """Makes the steps of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.kernel = machine, machine.kernel

    def step(self, number: int) -> Step:
        """The instruction of this number, executed by the lanes whose guard lets them."""
        instruction = self.kernel.instructions[number]
        try:
            step = self._step(number, instruction)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            if isinstance(error, PtxError):
                raise
            raise instruction.unknown() from error
        return self._guarded(instruction, step) if instruction.guard else step

    def _guarded(self, instruction: Instruction, step: Step) -> Step:
        guard = self.predicate(instruction.guard)

        def run(lanes: Lanes) -> None:
            mask = lanes.mask & guard()
            if mask.any():
                step(Lanes(mask, mask))

        return run

    def _step(self, number: int, one: Instruction) -> Step:
        opcode = one.opcode
        if opcode in NOTHING_TO_DO:
            return do_nothing
        if opcode in ("bra", "ret", "exit", "trap", "bar", "barrier"):
            return self._control(number, one)
        if opcode in ("ld", "ldu", "st"):
            return self._load_or_store(number, one)
        if opcode in ("atom", "red"):
            return self._atomic(number, one)
        own = {
            **{"mov": self._mov, "cvta": self._cvta, "cvt": self._cvt, "setp": self._setp},
            **{"selp": self._selp, "shf": self._funnel},
            **{"shfl": partial(self._shuffle, number), "vote": partial(self._vote, number)},
            "activemask": self._active_mask,
        }
        if opcode in own:
            return own[opcode](one)
        if opcode in BITS:
            return self._bits(one)
        return self._float(one) if one.type.startswith(("f", "bf")) else self._integer(one)

    # Operands ---------------------------------------------------------------------------------

    def read(self, operand: str, type_: str) -> Read:
        """The operand as numbers of a type: an array per thread, or one number for all."""
        dtype = DTYPES[type_]
        if operand in self.kernel.registers:
            return self._read_register(operand, type_)
        if operand in self.machine.special:  # they change from thread block to thread block
            return lambda: np.asarray(self.machine.special[operand]).astype(dtype)
        if operand in self.kernel.symbols:
            value = dtype.type(self.offset_of(operand))
        elif found := re.fullmatch(r"0([fd])([0-9A-Fa-f]+)", operand):
            bits = np.array(int(found[2], 16), "u4" if found[1] == "f" else "u8")
            value = bits.view(dtype)[()]  # also as bits, in mov.b32
        else:
            bits = int(operand.rstrip("U"), 0) & (1 << 8 * dtype.itemsize) - 1
            value = np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
        return lambda: value

    def _read_register(self, name: str, type_: str) -> Read:
        raw, dtype = self.machine.registers[name], DTYPES[type_]
        if type_ in ("f16x2", "bf16x2"):
            halves = raw.view(np.float16 if type_ == "f16x2" else np.uint16).reshape(-1, 2)
            return lambda: halves
        if raw.dtype == bool or raw.itemsize == dtype.itemsize:
            view = raw.view(dtype)
            return lambda: view
        if raw.itemsize > dtype.itemsize:  # its low bits
            return lambda: raw.astype(f"u{dtype.itemsize}").view(dtype)
        signed = raw.view(f"{'i' if dtype.kind == 'i' else 'u'}{raw.itemsize}")
        return lambda: signed.astype(dtype)

    def predicate(self, operand: str) -> Read:
        value = self.read(operand.lstrip("!"), "pred")
        return (lambda: ~value()) if operand.startswith("!") else value

    def offset_of(self, symbol: str) -> int:
        """Where an array begins in its space."""
        offset = self.kernel.symbols[symbol][1]
        return self.kernel.dynamic_offset if offset is None else offset

    def write(self, operand: str, type_: str) -> Write:
        """Keeps the lanes' results in a register. `_` takes them and forgets them."""
        if operand == "_":
            return lambda _value, _lanes: None
        raw, dtype = self.machine.registers[operand], DTYPES[type_]
        if type_ in ("f16x2", "bf16x2"):
            halves = self._read_register(operand, type_)()

            def write_halves(value: np.ndarray, lanes: Lanes) -> None:
                np.copyto(halves, value, where=lanes.mask[:, None], casting="unsafe")

            return write_halves
        if raw.dtype == bool or raw.itemsize == dtype.itemsize:
            view = raw.view(dtype)
        else:
            view = raw.view(f"{'i' if dtype.kind == 'i' else 'u'}{raw.itemsize}")

        def write(value: np.ndarray, lanes: Lanes) -> None:
            np.copyto(view, value, where=lanes.where, casting="unsafe")

        return write

    def _result(self, target: str, type_: str, function: Callable, *reads: Read) -> Step:
        """The step that writes function(*values) to a register."""
        write = self.write(target, type_)

        def run(lanes: Lanes) -> None:
            write(function(*[read() for read in reads]), lanes)

        return run

    def _reads(self, one: Instruction, type_: str) -> list[Read]:
        return [self.read(operand, type_) for operand in one.operands[1:]]

    # Control ----------------------------------------------------------------------------------

    def _control(self, number: int, one: Instruction) -> Step:
        machine, opcode = self.machine, one.opcode
        if opcode == "trap":

            def trap(_lanes: Lanes) -> None:
                raise PtxFault("sync", "the kernel stopped itself (trap)", one)

            return trap
        if "warp" in one.words:
            return self._sync_warp(number, one)
        if opcode in ("bar", "barrier"):
            if one.operands != ("0",):
                raise one.unknown()
            return lambda lanes: machine.wait(number, lanes)
        there = self.kernel.labels[one.operands[0]] if opcode == "bra" else DONE
        there = DONE if there == len(self.kernel.instructions) else there

        def go(lanes: Lanes) -> None:
            machine.next[lanes.mask] = there

        return go

    def _sync_warp(self, number: int, one: Instruction) -> Step:
        members = self.read(one.operands[0], "u32")

        def run(lanes: Lanes) -> None:
            lanes = self.machine.meet(number, members(), lanes)
            if not lanes.mask.any():
                return
            order = self.machine.ordering
            for warp in np.unique(np.flatnonzero(lanes.mask) // WARP_SIZE) if order else ():
                here = np.flatnonzero(lanes.mask[warp * WARP_SIZE :][:WARP_SIZE])
                order.syncwarp(int(warp), here)

        return run

    # Arithmetic -------------------------------------------------------------------------------

    def _integer(self, one: Instruction) -> Step:
        words, type_, opcode = one.words, one.type, one.opcode
        if "sat" in words or "cc" in words:
            raise one.unknown()
        if "wide" in words:
            wide = WIDER[type_]
            reads = [self._wide(operand, type_, wide) for operand in one.operands[1:3]]
            reads += [self.read(operand, wide) for operand in one.operands[3:]]
            return self._result(one.operands[0], wide, INTEGER[opcode], *reads)
        reads = self._reads(one, type_)
        if "hi" not in words:
            return self._result(one.operands[0], type_, INTEGER[opcode], *reads)

        def high(a: np.ndarray, b: np.ndarray, c: int = 0) -> np.ndarray:
            return numbers.high_half(a, b, type_) + DTYPES[type_].type(c)

        return self._result(one.operands[0], type_, high, *reads)

    def _wide(self, operand: str, type_: str, wide: str) -> Read:
        read = self.read(operand, type_)
        return lambda: np.asarray(read()).astype(DTYPES[wide])

    def _float(self, one: Instruction) -> Step:
        words, type_ = one.words, one.type
        if type_ not in ("f32", "f64"):
            return self._half(one)
        function = FLOAT[one.opcode]
        if "rm" in words and one.opcode == "fma":
            function = numbers.fma_down
        elif {"rz", "rm", "rp"} & set(words):
            raise one.unknown()
        reads, flush, exact = self._reads(one, type_), "ftz" in words, function

        def compute(*values: np.ndarray) -> np.ndarray:
            values = [numbers.flushed(value) for value in values] if flush else values
            result = exact(*values)
            result = numbers.flushed(result) if flush else result
            return numbers.saturated(result) if "sat" in words else result

        function = compute if flush or "sat" in words else exact
        return self._result(one.operands[0], type_, function, *reads)

    def _half(self, one: Instruction) -> Step:
        """float16 and bfloat16, one or two in a register: more bits, then rounded once."""
        type_ = one.type
        if {"rz", "rm", "rp", "sat", "ftz", "relu"} & set(one.words):
            raise one.unknown()
        function = numbers.fma_of_halves if one.opcode == "fma" else FLOAT[one.opcode]
        if type_.startswith("bf"):
            wider, rounded = numbers.from_bfloat16, numbers.to_bfloat16
        else:
            wider, rounded = np.float32, np.float16

        def compute(*values: np.ndarray) -> np.ndarray:
            result = function(*[wider(value) for value in values])
            if result.dtype == np.float64:
                result = numbers.narrowed_to_odd(result)
            return rounded(result)

        return self._result(one.operands[0], type_, compute, *self._reads(one, type_))

    def _bits(self, one: Instruction) -> Step:
        opcode, type_ = one.opcode, one.type
        result = "u32" if opcode in ("popc", "clz") else type_
        if opcode in ("shl", "shr", "bfe", "bfi"):
            count = 1 if opcode != "bfi" else 2
            reads = [self.read(operand, type_) for operand in one.operands[1 : 1 + count]]
            reads += [self.read(operand, "u32") for operand in one.operands[1 + count :]]
            values = [lambda read=read: np.atleast_1d(read()) for read in reads]
            return self._result(one.operands[0], result, BITS[opcode], *values)
        if opcode == "lop3":
            table, reads = int(one.operands[4], 0), self._reads(one, type_)[:3]
            function = partial(numbers.lut3, table=table)
            return self._result(one.operands[0], type_, function, *reads)
        if opcode == "prmt" and len(one.words) > 2:
            raise one.unknown()
        return self._result(one.operands[0], result, BITS[opcode], *self._reads(one, type_))

    def _funnel(self, one: Instruction) -> Step:
        """shf: 32 bits of the 64 in b:a, from a distance."""
        left, wrap = one.words[1] == "l", one.words[2] == "wrap"
        reads = self._reads(one, "u32")

        def run(a: np.ndarray, b: np.ndarray, distance: np.ndarray) -> np.ndarray:
            n = distance & np.uint32(31) if wrap else np.minimum(distance, np.uint32(32))
            n = np.asarray(n, np.uint64)
            both = np.asarray(b, np.uint64) << np.uint64(32) | np.asarray(a, np.uint64)
            return (both << n) >> np.uint64(32) if left else both >> n

        return self._result(one.operands[0], "u32", run, *reads)

    # Moves and conversions --------------------------------------------------------------------

    def _mov(self, one: Instruction) -> Step:
        target, source = one.operands
        if not (target.startswith("{") or source.startswith("{")):
            return self._result(
                one.operands[0], one.type, lambda value: value, self.read(source, one.type)
            )
        parts = _parts(source if source.startswith("{") else target)
        part = f"u{8 * size_of(one.type) // len(parts)}"
        whole = f"u{8 * size_of(one.type)}"
        if source.startswith("{"):
            reads = [self.read(name, part) for name in parts]

            def pack(*values: np.ndarray) -> np.ndarray:
                each = np.broadcast_arrays(*map(np.atleast_1d, values))
                return np.stack(each, 1).view(DTYPES[whole])[:, 0]

            return self._result(target, whole, pack, *reads)
        read, writes = self.read(source, whole), [self.write(name, part) for name in parts]

        def unpack(lanes: Lanes) -> None:
            pieces = np.ascontiguousarray(np.atleast_1d(read())).view(DTYPES[part])
            for number, write in enumerate(writes):
                write(pieces.reshape(-1, len(parts))[:, number].copy(), lanes)

        return unpack

    def _cvta(self, one: Instruction) -> Step:
        space = next(word for word in one.words if word in (*WINDOWS, "const", "param"))
        window = WINDOWS[space] if space != "global" else 0
        move = DTYPES[one.type].type(window)
        function = np.subtract if "to" in one.words else np.add
        read = self.read(one.operands[1], one.type)
        return self._result(one.operands[0], one.type, lambda value: function(value, move), read)

    def _cvt(self, one: Instruction) -> Step:
        target, source = one.words[-2:]
        if target in ("f16x2", "bf16x2"):
            return self._cvt_pair(one, target)
        rounding = next((word for word in one.words if word in numbers.ROUNDINGS), None)
        narrows = size_of(target) < size_of(source) and target[0] in "fb"
        if {"rz", "rm", "rp", "rna"} & set(one.words) and narrows:
            raise one.unknown()

        def convert(value: np.ndarray) -> np.ndarray:
            value = numbers.from_bfloat16(value) if source == "bf16" else np.asarray(value)
            value = numbers.flushed(value) if "ftz" in one.words else value
            if target == "bf16":
                return numbers.to_bfloat16(value)
            if source[0] in "fb" and target[0] in "us":
                return numbers.to_integer(value, target, rounding)
            if rounding:
                value = numbers.ROUNDINGS[rounding](value)
            if "sat" in one.words:
                value = numbers.saturated(value)
            return value.astype(DTYPES[target])

        if "sat" in one.words and target[0] in "us":
            raise one.unknown()
        return self._result(one.operands[0], target, convert, self.read(one.operands[1], source))

    def _cvt_pair(self, one: Instruction, target: str) -> Step:
        """Two float32 become the halves of a register, the first the upper."""
        reads = [self.read(operand, "f32") for operand in one.operands[1:]]

        def convert(high: np.ndarray, low: np.ndarray) -> np.ndarray:
            both = np.stack(np.broadcast_arrays(*map(np.atleast_1d, (low, high))), 1)
            return both.astype(np.float16) if target == "f16x2" else numbers.to_bfloat16(both)

        return self._result(one.operands[0], target, convert, *reads)

    def _setp(self, one: Instruction) -> Step:
        words, type_ = one.words, one.type
        name, is_float = words[1], type_.startswith("f")
        unordered = is_float and name in ("equ", "neu", "ltu", "leu", "gtu", "geu")
        join = JOINED.get(words[2])
        a, b = (self.read(operand, type_) for operand in one.operands[1:3])
        other = self.predicate(one.operands[3]) if join else None
        first, _, second = one.operands[0].partition("|")
        writes = [self.write(target, "pred") for target in (first, second) if target]
        if (type_ not in ("f32", "f64") and type_[0] not in "usb") or type_ == "bf16":
            raise one.unknown()

        def compare() -> np.ndarray:
            x, y = a(), b()
            nan = np.isnan(x) | np.isnan(y) if is_float else False
            if name in ("num", "nan"):
                return nan if name == "nan" else ~nan
            holds = COMPARISONS[name[:2]](x, y)
            return holds | nan if unordered else holds & ~np.asarray(nan)

        def run(lanes: Lanes) -> None:
            holds = compare()
            for write, value in zip(writes, (holds, ~holds), strict=False):
                write(join(value, other()) if join else value, lanes)

        if name not in ("num", "nan") and name[:2] not in COMPARISONS:
            raise one.unknown()
        return run

    def _selp(self, one: Instruction) -> Step:
        a, b = (self.read(operand, one.type) for operand in one.operands[1:3])
        chosen = self.predicate(one.operands[3])
        return self._result(
            one.operands[0], one.type, lambda p, x, y: np.where(p, x, y), chosen, a, b
        )

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

    def _address(self, one: Instruction, operand: str) -> tuple[Read, str]:
        """The addresses of all threads, and the space they are in; "" if they are generic."""
        base, offset = PLACE.fullmatch(operand).groups()
        offset = int(offset or "0", 0)
        space = next(
            (w.partition("::")[0] for w in one.words if w.partition("::")[0] in SPACES), ""
        )
        if base in self.kernel.symbols:
            number = self.offset_of(base) + offset
            places = np.full(self.machine.num_threads, number, np.int64)
            return (lambda: places), space
        type_ = f"u{8 * self.machine.registers[base].itemsize}"
        read = self.read(base, type_)
        return (lambda: read().astype(np.int64) + offset), space

    def _place(
        self, number: int, kind: str, one: Instruction, operand: str, size: tuple[int, int]
    ) -> Callable:
        """A function of the lanes: the space they access, and the places in its data."""
        address, space = self._address(one, operand)

        def place(lanes: Lanes) -> tuple:
            addresses = address()[lanes.mask]
            here = space or self._window(one, addresses)
            if not space or here == "global":
                addresses = addresses - WINDOWS[here]
            return self.machine.locate(number, kind, here, addresses, size, lanes)

        return place

    def _window(self, one: Instruction, addresses: np.ndarray) -> str:
        ordered = sorted(WINDOWS.items(), key=lambda item: -item[1])
        found = {next((s for s, w in ordered if a >= w), "global") for a in addresses.tolist()}
        if len(found) > 1:
            raise PtxFault(
                "memory", f"lanes access {' and '.join(sorted(found))} memory at once", one
            )
        return found.pop()

    def _load_or_store(self, number: int, one: Instruction) -> Step:
        is_store = one.opcode == "st"
        operand, data = one.operands if is_store else one.operands[::-1]
        parts = _parts(data) if data.startswith("{") else [data]
        if "param" in one.words:
            return self._load_parameter(one, operand, parts)
        type_, dtype = one.type, DTYPES[one.type]
        kind = "write" if is_store else "read"
        place = self._place(number, kind, one, operand, (dtype.itemsize, len(parts)))
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
        place = self._place(number, "atomic", one, one.operands[has_result], (dtype.itemsize, 1))
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


def _parts(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]
