"""Instructions that access memory, or the other lanes of a warp.

Source: NVIDIA, "Parallel Thread Execution ISA", chapter "Instruction Set".
"""

import operator
import re
from collections.abc import Callable, Iterable

import numpy as np

from simt.gpus import WARP_SIZE
from simt.half import COMPARISONS, NUMBERS
from simt.lanes import Lanes
from simt.ptx import numbers
from simt.ptx.machine import EVERY_LANE, PtxFault, Step
from simt.ptx.memory import WINDOWS, Space
from simt.ptx.numbers import DTYPES
from simt.ptx.operands import Operands, Read, Write, is_constant, parts_of
from simt.ptx.parsing import Instruction, PtxError

ATOMIC = {
    **{"add": operator.add, "min": min, "max": max, "exch": lambda old, new: new},
    **{"and": operator.and_, "or": operator.or_, "xor": operator.xor},
    "inc": lambda old, limit: old + 1 if old < limit else 0,
    "dec": lambda old, limit: old - 1 if 0 < old <= limit else limit,
    "cas": lambda old, expected, new: new if old == expected else old,
}
MATRICES = {"f16": 2, "bf16": 2, "tf32": 1}
# Names that C++ gives functions of halves: _ZL6__hmul6__halfS__nbst, _ZplRK6__halfS1__nbst.
HALF_FUNCTION = re.compile(r"_Z(?:L\d+_{0,2}(h\w+?)|([a-z]{2})RK)6__half\w*_nbst")
HALVES = NUMBERS | {f"h{name}": getattr(operator, name) for name in COMPARISONS}
OPERATORS = {
    **{"pl": "hadd", "mi": "hsub", "ml": "hmul", "dv": "hdiv", "ng": "hneg"},
    **{name: f"h{name}" for name in COMPARISONS},
}
COPIES = ("ca", "cg", "commit_group", "wait_group", "wait_all")
SPACES = ("global", "const", "shared", "local", "param")
# What their names may have besides: hints for caches, and order beyond that of barriers.
ORDERED = ("relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys")
HINTS = ("weak", "volatile", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "L1", "L2")
# Where the windows of generic addresses start, and which one an address is in: below the first, it
# is in no array of global memory.
STARTS = sorted(WINDOWS.values())
NAMES_OF_WINDOWS = ("global", *sorted(WINDOWS, key=WINDOWS.get))
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
# Which lane a lane reads from, given its number, a distance, and the bits of its segment.
SHUFFLES = {
    "up": lambda lane, distance, _: lane - distance,
    "down": lambda lane, distance, _: lane + distance,
    "bfly": lambda lane, distance, _: lane ^ distance,
    "idx": lambda lane, distance, segment: lane & segment | distance & ~segment,
}
# Their results, given which lanes hold the predicate and which don't.
VOTES = {
    "ballot": lambda yes, _: yes,
    "any": lambda yes, _: yes != 0,
    "all": lambda _, no: no == 0,
    "uni": lambda yes, no: (yes == 0) | (no == 0),
}
PLACE = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?(?:0x)?[0-9A-Fa-f]+))?\s*\]")


class Accesses(Operands):
    """Translates the accesses of one machine."""

    # Warps ------------------------------------------------------------------------------------

    def _together(self, one: Instruction, members: Read, step: Step) -> Step:
        """The step, for lanes whose warp has all lanes here that their masks name."""

        def run(lanes: Lanes) -> None:
            lanes = self.machine.meet(one, members(), lanes)
            if lanes.count:
                step(lanes)

        return run

    def _shuffle(self, one: Instruction) -> Step:
        _, _, mode, _ = one.words
        source = SHUFFLES[mode]
        target, _, there = one.operands[0].partition("|")
        value, b, c, members = (self.read(operand, "u32") for operand in one.operands[1:5])
        write, lane = self.write(target, "u32"), self.machine.lane
        write_there = self.write(there, "pred") if there else None

        def sources() -> tuple[np.ndarray, ...]:
            """The threads that are read from, whether they are those meant, and in the mask."""
            distance, clamp = (np.asarray(read()).astype(np.int64) for read in (b, c))
            distance, segment, clamp = distance & 31, clamp >> 8 & 31, clamp & 31
            last = lane & segment | clamp & ~segment
            from_ = source(lane, distance, segment)
            inside = from_ >= last if mode == "up" else from_ <= last
            threads = np.arange(len(lane)) - lane + np.where(inside, from_, lane)
            return threads, inside, members() >> (threads % WARP_SIZE).astype(np.uint32) & 1 == 1

        always = sources() if all(map(is_constant, (b, c, members))) else None

        def run(lanes: Lanes) -> None:
            threads, inside, named = always or sources()
            here = named if lanes.everyone else ~lanes.flags | lanes.flags[threads] & named
            if "sync" in self.machine.checks and not here.all():
                reader = int(np.argmin(here))
                source_lane = f"lane {threads[reader] % WARP_SIZE}"
                what = f"{self.machine.name(reader)} reads from {source_lane}, which isn't here or "
                raise PtxFault("sync", f"{what}isn't in the mask", one)
            write(np.broadcast_to(value(), len(lane))[threads], lanes)
            if write_there:
                write_there(inside, lanes)

        return self._together(one, members, run)

    def _active_mask(self, one: Instruction) -> Step:
        write = self.write(one.operands[0], "u32")
        return lambda lanes: write(self.machine.ballot(lanes.flags), lanes)

    def _vote(self, one: Instruction) -> Step:
        _, _, mode, _ = one.words
        result = VOTES[mode]
        holds, members = self.predicate(one.operands[1]), self.read(one.operands[2], "u32")
        write = self.write(one.operands[0], one.type)

        def run(lanes: Lanes) -> None:
            yes = self.machine.ballot(holds() & lanes.flags) & members()
            no = self.machine.ballot(~holds() & lanes.flags) & members()
            write(result(yes, no), lanes)

        return self._together(one, members, run)

    def _named(self, members: np.ndarray, lanes: Lanes) -> np.ndarray:
        """[warps, 32, 32] which lanes each lane's mask names, of those that are here."""
        masks = self.machine.warps(np.broadcast_to(members, self.machine.num_threads))
        named = masks[:, :, None] >> np.arange(WARP_SIZE, dtype=np.uint32) & 1 == 1
        return named & self.machine.warps(lanes.flags)[:, None, :]

    def _of_warps(self, read: Read) -> np.ndarray:
        return self.machine.warps(np.broadcast_to(read(), self.machine.num_threads))

    def _match(self, one: Instruction) -> Step:
        """The lanes that have the same number; or all lanes, if all have it."""
        target, _, all_have_it = one.operands[0].partition("|")
        read, members = self.read(one.operands[1], one.type), self.read(one.operands[2], "u32")
        write, write_all = self.write(target, "u32"), self.write(all_have_it or "_", "pred")
        is_all = {("any", "sync"): False, ("all", "sync"): True}[one.words[1:3]]

        def run(lanes: Lanes) -> None:
            named, values = self._named(members(), lanes), self._of_warps(read)
            same = named & (values[:, :, None] == values[:, None, :])
            if is_all:
                every = (same == named).all(axis=2)
                write_all(every.reshape(-1), lanes)
                same &= every[:, :, None]
            bits = np.packbits(same, axis=2, bitorder="little")
            write(bits.view(np.uint32).reshape(-1), lanes)

        return self._together(one, members, run)

    def _half_function(self, one: Instruction) -> Step:
        """A function of cuda.fp16, which Numba links when it launches. It takes pointers to local
        memory: where its result goes, and where its numbers are. It returns 0."""
        found = HALF_FUNCTION.fullmatch(one.operands[0])
        function = found and HALVES.get(found[1] or OPERATORS.get(found[2]))
        if not function:
            what = "the text has no such function"
            raise PtxError(f"line {one.line} of the PTX: {what}: {one.text}")
        _, returned, *pointers = one.operands
        machine, half, int64 = self.machine, np.dtype(np.float16), np.dtype(np.int64)
        param = machine.memory["param"]

        def run(lanes: Lanes) -> None:
            base, values = param.base[lanes.numbers], []
            to, *from_ = (
                param.items(int64)[(base + self.places[name]) // 8] - WINDOWS["local"]
                for name in pointers
            )
            for addresses in from_:
                memory, places = machine.locate(one, "read", "local", addresses, 2, lanes)
                values.append(memory.items(half)[places // 2].astype(np.float64))
            result = function(*values)
            result = result if result.dtype == bool else result.astype(half)
            memory, places = machine.locate(one, "write", "local", to, result.itemsize, lanes)
            memory.items(result.dtype)[places // result.itemsize] = result
            memory.write(places, result.itemsize)
            places = base + self.places[returned]
            param.items(np.dtype(np.int32))[places // 4] = 0
            param.write(places, 4)

        return run

    # Matrices ---------------------------------------------------------------------------------

    def _mma(self, one: Instruction) -> Step:
        """d = a * b + c: a warp's [16, k] times [k, 8], plus [16, 8]."""
        type_, sum_ = one.words[-2], one.type
        d, a, b, c = (parts_of(operand) for operand in one.operands)
        items, steps = MATRICES[type_], len(b)  # in a register of a and b; registers of b
        names = "mma", "sync", "aligned", f"m16n8k{4 * items * steps}", "row", "col"
        num = {"f32": 4, "f16": 2}[sum_]
        is_known = one.words == (*names, sum_, type_, type_, sum_) and steps in (1, 2)
        has_all = [len(a), len(c), len(d)] == [2 * steps, num, num]
        if not (is_known and has_all) or (sum_, type_) == ("f16", "bf16"):
            raise one.unknown()
        pair = sum_ if sum_ == "f32" else "f16x2"
        writes = [self.write(name, pair) for name in d]
        left, right = ([self._in_matrix(name, type_) for name in names] for names in (a, b))
        added = [self.read(name, pair) for name in c]

        def run(lanes: Lanes) -> None:
            shape = self.machine.num_threads, 4 // num
            first, second = (np.stack([read() for read in each], axis=1) for each in (left, right))
            third = [np.broadcast_to(read().reshape(-1, 4 // num), shape) for read in added]
            result = numbers.matrix_product(first, second, np.concatenate(third, axis=1))
            for n, write in enumerate(writes):
                write(result[:, n] if num == 4 else result[:, 2 * n : 2 * n + 2], lanes)

        return self._together(one, lambda: EVERY_LANE, run)

    def _in_matrix(self, name: str, type_: str) -> Read:
        """[n, items] of a register; a tf32 is a float32 without its lowest 13 bits."""
        if type_ != "tf32":
            return self.read(name, f"{type_}x2")
        bits = self.read(name, "b32")
        return lambda: (bits() & np.uint32(0xFFFFE000)).view(np.float32).reshape(-1, 1)

    def _matrices(self, one: Instruction) -> Step:
        """ldmatrix and stmatrix: one, two or four matrices of 8 x 8 halves. Lane 8 * m + r has the
        address of row r of matrix m, and lane 4 * r + c the halves 2 * c and 2 * c + 1 of row r."""
        is_store, turned = one.opcode == "stmatrix", "trans" in one.words
        operand, data = one.operands if is_store else one.operands[::-1]
        names = parts_of(data)
        if one.words[1:5] != ("sync", "aligned", "m8n8", f"x{len(names)}"):
            raise one.unknown()
        kind = "write" if is_store else "read"
        place = self._place(one, kind, space_of(one.words), operand, 16)
        access = self._put_rows(names, turned) if is_store else self._take_rows(names, turned)

        def run(lanes: Lanes) -> None:
            has_row = self.machine.among(lanes, self.machine.lane < 8 * len(names))
            memory, places = place(has_row)
            access(memory, places[:, None] + np.arange(16), has_row.flags, lanes)

        return self._together(one, lambda: EVERY_LANE, run)

    def _take_rows(self, names: list[str], turned: bool) -> Callable:
        """ldmatrix, given the places of all rows and the lanes that have one."""
        writes = [self.write(name, "b32") for name in names]
        rows = np.zeros((self.machine.num_threads, 16), np.uint8)

        def take(memory: Space, places: np.ndarray, has_row: np.ndarray, lanes: Lanes) -> None:
            rows[has_row] = memory.data[places]
            matrices = rows.view(np.uint16).reshape(-1, 4, 8, 8)  # [warp, matrix, row, column]
            matrices = np.ascontiguousarray(matrices.swapaxes(2, 3) if turned else matrices)
            for n, write in enumerate(writes):
                write(matrices[:, n].view(np.uint32).reshape(-1), lanes)

        return take

    def _put_rows(self, names: list[str], turned: bool) -> Callable:
        """stmatrix, given the same."""
        reads = [self.read(name, "b32") for name in names]
        matrices = np.zeros((self.machine.num_threads // WARP_SIZE, 4, 8, 8), np.uint16)

        def put(memory: Space, places: np.ndarray, has_row: np.ndarray, _lanes: Lanes) -> None:
            for n, read in enumerate(reads):
                matrix = np.ascontiguousarray(read()).view(np.uint16).reshape(-1, 8, 8)
                matrices[:, n] = matrix.swapaxes(1, 2) if turned else matrix
            memory.data[places] = matrices.reshape(-1, 8)[has_row].view(np.uint8)
            memory.written[places] = True

        return put

    # Memory -----------------------------------------------------------------------------------

    def _address(self, operand: str, window: int = 0) -> Read:
        """The addresses of all threads, within the space that has the window."""
        base, offset = PLACE.fullmatch(operand).groups()
        offset = self.places.get(offset, offset or "0")  # of an array without a name in the text
        offset = (offset if isinstance(offset, int) else int(offset, 0)) - window
        if base in self.places:
            number = self.places[base] + offset
            places = np.full(self.machine.num_threads, number, np.int64)
            return lambda: places
        type_ = f"u{8 * self.machine.registers[base].itemsize}"
        read, moved = self.read(base, type_), DTYPES[type_].type(offset % 2 ** int(type_[1:]))
        if type_ == "u64":
            return lambda: (read() + moved).view(np.int64)
        return lambda: (read() + moved).astype(np.int64)  # wraps around in 32 bits, too

    def _place(
        self, one: Instruction, kind: str, space: str, operand: str, num_bytes: int
    ) -> Callable:
        """A function of the lanes: the space they access, and the places in its data.

        space      "" if the addresses are generic
        num_bytes  that a lane accesses
        """
        address = self._address(operand, WINDOWS["global"] if space == "global" else 0)
        variable = self.kernel.variables.get(PLACE.fullmatch(operand)[1])
        if space == "param":
            if variable is None:  # an address in a register, as of a structure
                raise one.unknown()
            space = variable.space

        def place(lanes: Lanes) -> tuple:
            addresses = address() if lanes.everyone else address()[lanes.numbers]
            here = space or NAMES_OF_WINDOWS[np.searchsorted(STARTS, addresses[0], side="right")]
            if not space:
                addresses = addresses - WINDOWS[here]
            return self.machine.locate(one, kind, here, addresses, num_bytes, lanes)

        return place

    def _space_by_space(self, one: Instruction, operand: str, step: Step) -> Step:
        """The step of an access; if its addresses are generic, for the lanes of each space in
        turn."""
        if space_of(one.words):
            return step
        address = self._address(operand)

        def run(lanes: Lanes) -> None:
            spaces = np.searchsorted(STARTS, address(), side="right")
            for number in np.unique(spaces[lanes.numbers]):
                step(self.machine.among(lanes, spaces == number))

        return run

    def _load_or_store(self, one: Instruction) -> Step:
        is_store = one.opcode == "st"
        operand, data = one.operands if is_store else one.operands[::-1]
        parts = parts_of(data) if data.startswith("{") else [data]
        one.require(*SPACES, *ORDERED, *HINTS, *VECTORS)
        if len(parts) != (sum(VECTORS.get(word, 0) for word in one.words) or 1):
            raise one.unknown()
        is_const = "const" in one.words
        is_read_only = is_const or PLACE.fullmatch(operand)[1] in self.kernel.parameters
        if (is_store and is_read_only) or (is_const and not self.kernel.arrays):
            raise one.unknown()
        type_, dtype = one.type, DTYPES[one.type]
        kind, num_bytes = "write" if is_store else "read", dtype.itemsize * len(parts)
        place = self._place(one, kind, space_of(one.words), operand, num_bytes)
        raw = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "f" else dtype
        if is_store:
            reads = [self.read(name, type_) for name in parts]

            def store(lanes: Lanes) -> None:
                memory, places = place(lanes)
                items, first = memory.items(raw), places // dtype.itemsize
                for n, read in enumerate(reads):
                    value = np.broadcast_to(read(), self.machine.num_threads)[lanes.numbers]
                    items[first + n] = value.view(raw)
                memory.write(places, num_bytes)

            return self._space_by_space(one, operand, store)
        loaded = [self._loaded(name, type_) for name in parts]

        def load(lanes: Lanes) -> None:
            memory, places = place(lanes)
            items, first = memory.items(raw), places // dtype.itemsize
            for n, put in enumerate(loaded):
                put(items.take(first + n if n else first).view(dtype), lanes)

        return self._space_by_space(one, operand, load)

    def _loaded(self, target: str, type_: str) -> Write:
        """Keeps the lanes' numbers in a register, given those of the active lanes."""
        if target == "_":
            return lambda _value, _lanes: None
        if numbers.narrow(type_):
            every = np.zeros(self.machine.num_threads, DTYPES[type_])
            write = self.write(target, type_)

            def put(value: np.ndarray, lanes: Lanes) -> None:
                every[lanes.numbers] = value
                write(every, lanes)

            return put
        view = self._view(target, type_)

        def put(value: np.ndarray, lanes: Lanes) -> None:
            view[... if lanes.everyone else lanes.numbers] = value

        return put

    def _copy(self, one: Instruction) -> Step:
        """cp.async: the bytes arrive at once, but count as written when their thread has waited."""
        machine, what = self.machine, one.words[2]
        if one.words[1] != "async" or what not in COPIES or "L2::cache_hint" in one.words:
            raise one.unknown()
        if what == "commit_group":
            return lambda lanes: machine.copies.commit(lanes.flags)
        if what.startswith("wait"):
            most = int(one.operands[0], 0) if what == "wait_group" else None
            return lambda lanes: machine.wait_for_copies(most, lanes)
        target, source, size, *rest = one.operands
        num_bytes, taken = int(size, 0), rest[0] if rest else size
        if num_bytes not in (4, 8, 16) or self.kernel.registers.get(taken) == "pred":
            raise one.unknown()
        taken = self.read(taken, "u32")  # so many bytes; the others become zero
        to = self._place(one, "write", "shared", target, num_bytes)
        from_ = self._place(one, "read", "global", source, num_bytes)

        def copy(lanes: Lanes) -> None:
            values = np.zeros((machine.num_threads, num_bytes), np.uint8)
            read = machine.among(lanes, taken() != 0)
            if machine.among(read, taken() != num_bytes).count:  # a part of the bytes
                raise one.unknown()
            if read.count:
                memory, places = from_(read)
                values[read.numbers] = memory.data[places[:, None] + np.arange(num_bytes)]
            memory, places = to(lanes)
            places = places[:, None] + np.arange(num_bytes)
            memory.data[places], memory.written[places] = values[lanes.numbers], False
            machine.copies.add(one, lanes.numbers, places)

        return copy

    def _atomic(self, one: Instruction) -> Step:
        """One lane after another, in the order of their numbers."""
        operation = next(word for word in one.words if word in ATOMIC)
        type_, dtype = one.type, DTYPES[one.type]
        if numbers.narrow(type_):
            raise one.unknown()
        has_result = one.opcode == "atom"
        num_given = 2 if operation == "cas" else 1
        one.require(*SPACES, *ORDERED, operation, operands=has_result + 1 + num_given)
        target = one.operands[has_result]
        place = self._place(one, "atomic", space_of(one.words), target, dtype.itemsize)
        reads = [self.read(operand, type_) for operand in one.operands[has_result + 1 :]]
        write = self.write(one.operands[0], type_) if has_result else None
        old = np.zeros(self.machine.num_threads, dtype)

        def run(lanes: Lanes) -> None:
            memory, places = place(lanes)
            items = memory.items(dtype)
            values = [np.broadcast_to(read(), self.machine.num_threads) for read in reads]
            combine = ATOMIC[operation]
            if (operation, type_, memory.name) == ("add", "f32", "global"):
                combine = numbers.flushed_sum
            for thread, at in zip(lanes.numbers, places // dtype.itemsize, strict=True):
                old[thread] = items[at]
                items[at] = combine(old[thread], *(value[thread] for value in values))
            if write:
                write(old, lanes)

        return self._space_by_space(one, target, run)


def space_of(words: Iterable[str]) -> str:
    """The space that an instruction's name has; "" if its addresses are generic. Constant memory
    is global memory here."""
    spaces = (word.partition("::")[0].replace("const", "global") for word in words)
    return next((space for space in spaces if space in SPACES), "")
