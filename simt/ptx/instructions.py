"""PTX instructions as Python functions.

A Translator makes a Step of an instruction: a function that executes it for the lanes it is given.

Source: NVIDIA, "Parallel Thread Execution ISA", chapter "Instruction Set".
"""

from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from operator import methodcaller

import numpy as np

from simt.gpus import WARP_SIZE
from simt.lanes import Lanes
from simt.ptx import numbers
from simt.ptx.accesses import ORDERED, STARTS, Accesses, space_of
from simt.ptx.machine import DONE, FENCES, PtxFault, Step
from simt.ptx.memory import WINDOWS
from simt.ptx.numbers import DTYPES, WIDER, size_of
from simt.ptx.operands import Fixed, is_constant, parts_of
from simt.ptx.parsing import Instruction, PtxError
from simt.ptx.registers import CARRY
from simt.ptx.types import types_of_operands

COMPARISONS = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal},
    **{"hi": np.greater, "hs": np.greater_equal},
    **{"nu": lambda _a, _b: np.True_, "na": lambda _a, _b: np.False_},  # num, nan
}
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
JOINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
INTEGER = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c},
    **{"min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs},
    **{"div": numbers.quotient, "rem": np.fmod},
    "sad": lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c,
}
FMA = numbers.fma.ufunc  # of NumPy's kind, so that it can write in place
FLOAT = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": FMA},
    **{"min": numbers.lesser, "max": numbers.greater},
    **{"neg": np.negative, "abs": np.abs, "copysign": lambda a, b: np.copysign(b, a)},
    **{"div": np.divide, "rcp": np.reciprocal, "sqrt": np.sqrt, "ex2": numbers.exp2},
    **{"rsqrt": lambda a: 1 / np.sqrt(a), "lg2": np.log2, "tanh": np.tanh},
    **{"sin": np.sin, "cos": np.cos},
}
# What a word of an instruction does to its result.
AFTER = {
    **{"ftz": numbers.flushed, "sat": numbers.saturated},
    "relu": lambda result: np.where(result < 0, 0, result),
}
# Of prmt with a mode, by its last operand's low two bits.
SELECTORS = {
    **{"f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123)},
    **{"rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333)},
    **{"ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232)},
}
NEAR = {"shl": np.left_shift, "shr": np.right_shift}  # by less than the width
BITS = {
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert},
    **{"shl": numbers.shifted_left, "shr": numbers.shifted_right},
    **{"popc": numbers.count_ones, "clz": numbers.count_leading_zeros},
    **{"lop3": numbers.lut3, "brev": numbers.reversed_bits},
    **{"bfind": numbers.leading_one, "bfind.shiftamt": numbers.shift_to_leading_one},
    **{"bfe": numbers.bits_of, "bfi": numbers.with_bits},
}
BARRIER = {"sync", "cta", "aligned"}
FENCE = {"cta", "cluster", "gl", "gpu", "sys", "sc", *ORDERED, "proxy", "async", "alias"}
# The methods that translate all but arithmetic.
OWN = {
    **dict.fromkeys(("bra", "ret", "exit", "trap", "bar", "barrier"), "_control"),
    **dict.fromkeys(("ld", "ldu", "st"), "_load_or_store"),
    **dict.fromkeys(BITS, "_bits"),
    **{"mov": "_mov", "cvta": "_cvta", "cvt": "_cvt", "setp": "_setp", "selp": "_selp"},
    **{"shf": "_funnel", "shfl": "_shuffle", "vote": "_vote", "activemask": "_active_mask"},
    **{"mma": "_mma", "cp": "_copy", "ldmatrix": "_matrices", "stmatrix": "_matrices"},
    **{"match": "_match", "redux": "_reduce", "dp4a": "_dot", "dp2a": "_dot"},
    **{"addc": "_with_carry", "subc": "_with_carry", "madc": "_with_carry"},
    **{"testp": "_test", "isspacep": "_is_in_space", "prmt": "_permute"},
    **{"atom": "_atomic", "red": "_atomic"},
    **{"nanosleep": "_nothing", "pragma": "_nothing", "call": "_nothing"},
}
TESTS = {
    **{"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan},
    "number": lambda a: ~np.isnan(a),
    "normal": lambda a: np.isfinite(a) & ((numbers.flushed(a) != 0) | (a == 0)),
    "subnormal": lambda a: (numbers.flushed(a) == 0) & (a != 0),
}


@cache
def num_values(function: Callable) -> int:
    """How many numbers it computes with."""
    return getattr(function, "nin", 0) or len(signature(function).parameters)


class Translator(Accesses):
    """Makes the steps of one machine."""

    def step(self, instruction: Instruction) -> Step:
        """The instruction, executed by the lanes whose guard lets them."""
        try:
            step = self._step(instruction)
            return self._guarded(instruction, step) if instruction.guard else step
        except PtxError:
            raise
        except Exception as error:  # whatever an operand that isn't expected leads to
            raise instruction.unknown() from error

    def _guarded(self, instruction: Instruction, step: Step) -> Step:
        guard, machine = self.predicate(instruction.guard), self.machine

        def run(lanes: Lanes) -> None:
            lanes = machine.among(lanes, guard())
            if lanes.count:
                step(lanes)

        return run

    def _step(self, one: Instruction) -> Step:
        opcode = one.opcode
        if one.words == ("call", "unknown"):
            return self._half_function(one)
        if opcode in FENCES:
            if one.operands or not {*one.words[1:]} <= FENCE:
                raise one.unknown()
            return lambda lanes: self.machine.fence(one, lanes)
        if "cc" in one.words and opcode in ("add", "sub", "mad"):
            return self._with_carry(one)
        if opcode in OWN:
            return getattr(self, OWN[opcode])(one)
        return self._float(one) if one.type.startswith(("f", "bf")) else self._integer(one)

    # Control ----------------------------------------------------------------------------------

    def _nothing(self, _one: Instruction) -> Step:
        return lambda _lanes: None

    def _control(self, one: Instruction) -> Step:
        machine, opcode = self.machine, one.opcode
        if opcode == "trap":

            def trap(_lanes: Lanes) -> None:
                raise PtxFault("sync", "the kernel stopped itself (trap)", one)

            return trap
        if one.words == ("bar", "warp", "sync"):
            return self._sync_warp(one)
        if opcode in ("bar", "barrier"):
            if "red" in one.words:
                return self._reduce_at_barrier(one)
            if one.operands != ("0",) or not {"sync"} <= {*one.words[1:]} <= BARRIER:
                raise one.unknown()
            return lambda lanes: machine.wait(one, lanes)
        labels = self.kernel.labels
        there = next(labels[n] for n in one.operands if n in labels) if opcode == "bra" else DONE
        there = there if there < len(self.kernel.instructions) else DONE

        return lambda lanes: machine.go(lanes, there)

    def _reduce_at_barrier(self, one: Instruction) -> Step:
        """bar.red: how many threads of the block hold a predicate, or whether any or all do."""
        machine, how = self.machine, one.words[-2]
        target, number, guard = one.operands
        if number != "0" or how not in ("popc", "and", "or"):
            raise one.unknown()
        holds, write = self.predicate(guard), self.write(target, one.type)
        kept = np.zeros(machine.num_threads, bool)

        def tell(lanes: Lanes) -> None:
            each = np.where(lanes.flags, kept, how == "and").reshape(-1, machine.per_block)
            function = {"popc": np.sum, "and": np.all, "or": np.any}[how]
            write(np.repeat(function(each, axis=1), machine.per_block), lanes)

        def run(lanes: Lanes) -> None:
            np.copyto(kept, holds(), where=lanes.flags)
            machine.wait(one, lanes, tell)

        return run

    def _sync_warp(self, one: Instruction) -> Step:
        members = self.read(one.operands[0], "u32")

        def run(lanes: Lanes) -> None:
            order, flags = self.machine.ordering, lanes.flags
            masks = np.broadcast_to(members(), len(flags))
            for warp in np.unique(lanes.numbers // WARP_SIZE) if order else ():
                its = slice(warp * WARP_SIZE, (warp + 1) * WARP_SIZE)
                for mask in np.unique(masks[its][flags[its]]):
                    order.syncwarp(int(warp), np.flatnonzero(flags[its] & (masks[its] == mask)))

        return self._together(one, members, run)

    def _reduce(self, one: Instruction) -> Step:
        """redux.sync: every lane gets what the numbers of all lanes named come to."""
        how, limits = one.words[2], np.iinfo(DTYPES[one.type])
        function = {**INTEGER, **BITS}[how]
        start = {"add": 0, "or": 0, "xor": 0, "and": ~limits.dtype.type(0)}
        start |= {"min": limits.max, "max": limits.min}
        options = {"axis": 2, "dtype": limits.dtype, "initial": start[how]}
        one.require("sync", how, operands=3)
        read, members = self.read(one.operands[1], one.type), self.read(one.operands[2], "u32")
        write = self.write(one.operands[0], one.type)

        def run(lanes: Lanes) -> None:
            named = self._named(members(), lanes)
            each = np.broadcast_to(self._of_warps(read)[:, None, :], named.shape)
            write(function.reduce(each, where=named, **options).reshape(-1), lanes)

        return self._together(one, members, run)

    # Arithmetic -------------------------------------------------------------------------------

    def _integer(self, one: Instruction) -> Step:
        words, type_, opcode = one.words, one.type, one.opcode.removesuffix("24")
        function = INTEGER[opcode]
        halves = ("lo", "hi", "wide") if opcode in ("mul", "mad") else ()
        one.require(*halves, operands=1 + num_values(function))
        if len(words) > 3:
            raise one.unknown()
        if "wide" in words:
            product = partial(np.multiply, dtype=DTYPES[WIDER[type_]])
            function = product if opcode == "mul" else lambda a, b, c: product(a, b) + c
        if "hi" in words:

            def function(a: np.ndarray, b: np.ndarray, c: int = 0) -> np.ndarray:
                return numbers.high_half(a, b, type_) + DTYPES[type_].type(c)

        def of_24_bits(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
            a, b = (np.left_shift(x, 8) >> (0 if "hi" in words else 8) for x in (a, b))
            return function(a, b, *c)

        result = types_of_operands(words)[0]
        compute = function if opcode == one.opcode else of_24_bits
        return self._result(one.operands[0], result, compute, *self._typed_reads(one))

    def _float(self, one: Instruction) -> Step:
        words, type_, narrow = one.words, one.type, numbers.narrow(one.type)
        opcode = "fma" if one.opcode == "mad" else one.opcode  # the same since sm_20
        function, flush = FLOAT[opcode], "ftz" in words
        allowed = ["rn", "approx", "full", "sat"]
        if narrow and opcode == "fma":
            function, allowed = numbers.fma_of_halves, [*allowed, "relu"]
        if opcode in ("min", "max"):
            function = numbers.or_nan(function) if "NaN" in words else function
            allowed = ["NaN"]
        allowed += ["ftz"] if not narrow or type_.startswith("bf16") else []
        how = next((word for word in words if word in numbers.TOWARDS), None)
        if how and opcode in numbers.ABOVE and not narrow:
            allowed += [how]
            function = numbers.rounded(opcode, how, function)
        one.require(*allowed, operands=1 + num_values(FLOAT[opcode]))
        last = [AFTER[word] for word in words if word in AFTER]

        def compute(*values: np.ndarray) -> np.ndarray:
            result = function(*map(numbers.flushed, values) if flush else values)
            for change in last:
                result = change(result)
            return result

        reads = self._reads(one, type_)
        return self._result(one.operands[0], type_, compute if last else function, *reads)

    def _bits(self, one: Instruction) -> Step:
        opcode, type_ = one.opcode, one.type
        function, result = BITS[".".join(one.words[:-1])], types_of_operands(one.words)[0]
        one.require("shiftamt", operands=1 + num_values(function))
        reads = self._typed_reads(one)
        if opcode in NEAR and is_constant(reads[1]) and reads[1]() < 8 * size_of(type_):
            near = Fixed(reads[1]().astype(DTYPES[type_]))
            return self._result(one.operands[0], result, NEAR[opcode], reads[0], near)
        if opcode in ("shl", "shr", "bfe", "bfi"):
            reads = [lambda read=read: np.atleast_1d(read()) for read in reads]
        if opcode == "lop3":
            function = partial(function, table=int(one.operands[4], 0))
        return self._result(one.operands[0], result, function, *reads)

    def _permute(self, one: Instruction) -> Step:
        _, type_, *mode = one.words
        reads = self._reads(one, type_)
        if mode:
            table, number = np.array(SELECTORS[".".join(mode)]), reads.pop()
            reads.append(lambda: table[number() & np.uint32(3)])
        return self._result(one.operands[0], type_, numbers.permuted_bytes, *reads)

    def _dot(self, one: Instruction) -> Step:
        """dp4a, dp2a: c and the products of a's bytes, or halves, with b's or half of b's bytes."""
        count, first = int(one.opcode[2]), 2 if "hi" in one.words else 0
        kinds = [{"s32": "i", "u32": "u"}[type_] for type_ in one.words[-2:]]
        one.require("u32", "s32", *(("lo", "hi") if count == 2 else ()), operands=4)

        def dot(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            left = np.atleast_1d(a).view(f"{kinds[0]}{4 // count}").reshape(-1, count)
            right = np.atleast_1d(b).view(f"{kinds[1]}1").reshape(-1, 4)[:, first : first + count]
            return np.multiply(left, right, dtype=np.int64).sum(axis=1) + c

        return self._result(one.operands[0], "s32", dot, *self._reads(one, "s32"))

    def _with_carry(self, one: Instruction) -> Step:
        """add, sub and mad that use the carry flag: with .cc they set it, with a c they add it."""
        opcode, type_ = one.opcode[:3], f"u{one.type[1:]}"
        one.require(*(("cc", "lo", "hi") if opcode == "mad" else ("cc",)))
        flag, is_sub = self.machine.registers[CARRY], np.bool_(opcode == "sub")
        takes, gives = one.opcode.endswith("c"), "cc" in one.words
        write, write_flag = self.write(one.operands[0], type_), self.write(CARRY, "pred")
        reads, high = self._reads(one, one.type), partial(numbers.high_half, type_=one.type)
        product = np.multiply if "lo" in one.words else high

        def run(lanes: Lanes) -> None:
            *factors, last = (read() for read in reads)
            first = product(*factors) if opcode == "mad" else factors[0]
            a, b = (np.asarray(x).view(DTYPES[type_]) for x in (first, last))
            b = ~b if is_sub else b  # a - b = a + ~b + 1: a borrow is no carry
            part = a + b
            result = part + (flag ^ is_sub if takes else is_sub)
            carry = ((part < a) | (result < part)) ^ is_sub  # before a's register is written
            write(result, lanes)
            if gives:
                write_flag(carry, lanes)

        return run

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
            return self._move(target, one.type, self.read(source, one.type))
        parts = parts_of(source if source.startswith("{") else target)
        part = f"u{8 * size_of(one.type) // len(parts)}"
        whole = f"u{8 * size_of(one.type)}"
        if source.startswith("{"):
            reads = [self.read(name, part) for name in parts]

            def pack(*values: np.ndarray) -> np.ndarray:
                each = np.broadcast_arrays(*map(np.atleast_1d, values))
                return np.stack(each, 1).view(DTYPES[whole])[:, 0]

            return self._result(target, whole, pack, *reads)
        read, writes = self.read(source, whole), [self.write(name, part) for name in parts]

        def pieces() -> np.ndarray:
            each = np.ascontiguousarray(np.atleast_1d(read())).view(DTYPES[part])
            return each.reshape(-1, len(parts))

        if isinstance(read, Fixed):  # the pieces lie where the register lies
            pieces = Fixed(pieces())

        def unpack(lanes: Lanes) -> None:
            for value, write in zip(pieces().T, writes, strict=True):
                write(value, lanes)

        return unpack

    def _cvta(self, one: Instruction) -> Step:
        space, dtype = space_of(one.words), DTYPES[one.type]
        move = Fixed(np.asarray(WINDOWS[space] if space != "global" else 0, dtype))
        function = np.subtract if "to" in one.words else np.add
        return self._result(one.operands[0], one.type, function, *self._reads(one, one.type), move)

    def _cvt(self, one: Instruction) -> Step:
        target, source = one.words[-2:]
        if target.endswith("x2"):
            return self._cvt_pair(one, target, source)
        rounding = next((word for word in one.words if word in numbers.ROUNDINGS), None)
        flush, bits = "ftz" in one.words, 8 * size_of(target)
        nan = 1 << bits - 1 if source == "f64" or bits == 64 else 0
        is_integer = target[0] in "us"
        how = next((word for word in one.words if word in numbers.TOWARDS), None)
        towards = numbers.TOWARDS if target in ("f32", "f64") else ()
        one.require("rn", "ftz", "sat", *towards, *numbers.ROUNDINGS, target, operands=2)
        read = self.read(one.operands[1], source)
        plain = not (rounding or flush or how or "sat" in one.words or numbers.narrow(target))
        if plain and (source[0] in "us" or not is_integer):
            if is_integer and size_of(target) <= size_of(source) and target != source:
                narrow = methodcaller("astype", DTYPES[target])  # the register may be wider
                return self._result(one.operands[0], target, narrow, read)
            return self._move(one.operands[0], target, read)
        if is_integer and source[0] in "us" and "sat" in one.words:
            each = [np.iinfo(DTYPES[type_]) for type_ in (target, source)]
            limits = max(one.min for one in each), min(one.max for one in each)
            return self._result(one.operands[0], target, lambda value: value.clip(*limits), read)

        to_float = methodcaller("astype", DTYPES[target])
        if how:
            to_float = numbers.rounded("cvt", how, to_float)

        def convert(value: np.ndarray) -> np.ndarray:
            value = numbers.flushed(value) if flush and source == "f32" else np.asarray(value)
            if source[0] in "fb" and is_integer:
                return numbers.to_integer(value, target, rounding, nan)
            if rounding:
                value = numbers.ROUNDINGS[rounding](value)
            if "sat" in one.words:
                value = numbers.saturated(value)
            value = value if numbers.narrow(target) else to_float(value)
            return numbers.flushed(value) if flush and target == "f32" else value

        return self._result(one.operands[0], target, convert, read)

    def _cvt_pair(self, one: Instruction, target: str, source: str) -> Step:
        """Two float32 become a pair, the first its upper half; 8-bit floats become float16."""
        of_8_bits = ("e4m3x2", "e5m2x2")
        expected = ["cvt", "rn", *["satfinite"] * (target in of_8_bits), target, source]
        is_known = source == "f32" or (target == "f16x2" and source in of_8_bits)
        if list(one.words) != expected or not is_known:
            raise one.unknown()
        reads = [self.read(operand, source) for operand in one.operands[:0:-1]]  # the lower first

        def pair(*values: np.ndarray) -> np.ndarray:
            return np.column_stack(np.broadcast_arrays(*values))

        return self._result(one.operands[0], target, pair, *reads)

    def _setp(self, one: Instruction) -> Step:
        words, type_ = one.words, one.type
        name, is_float = words[1], type_.startswith(("f", "bf"))
        join = next((JOINED[word] for word in words if word in JOINED), None)
        more = UNORDERED if is_float else ("lo", "ls", "hi", "hs") if type_[0] == "u" else ()
        if name not in ("eq", "ne", "lt", "le", "gt", "ge", *more):
            raise one.unknown()
        one.require(name, *(("ftz",) if is_float else ()), *JOINED, operands=4 if join else 3)
        compared, unordered = COMPARISONS[name[:2]], is_float and name[2:] in ("u", "n")
        a, b = (self.read(operand, type_) for operand in one.operands[1:3])
        other = self.predicate(one.operands[3]) if join else None
        first, _, second = one.operands[0].partition("|")
        writes = [self.write(target, "pred") for target in (first, second) if target]
        if type_.endswith("x2"):
            raise one.unknown()
        needs_no_more = name in COMPARISONS and name != "ne" if is_float else name in COMPARISONS
        if needs_no_more and not (join or second or "ftz" in words):
            return self._result(first, "pred", compared, a, b)

        def compare() -> np.ndarray:
            x, y = (numbers.flushed(read()) if "ftz" in words else read() for read in (a, b))
            nan = np.isnan(x) | np.isnan(y) if is_float else False
            holds = compared(x, y)
            return holds | nan if unordered else holds & ~np.asarray(nan)

        def run(lanes: Lanes) -> None:
            holds = compare()
            values = holds, ~holds
            if join:
                values = [join(value, other()) for value in values]
            for write, value in zip(writes, values, strict=False):
                write(value, lanes)

        return run

    def _test(self, one: Instruction) -> Step:
        holds = TESTS[one.words[1]]
        return self._result(one.operands[0], "pred", holds, *self._reads(one, one.type))

    def _is_in_space(self, one: Instruction) -> Step:
        number = STARTS.index(WINDOWS[one.words[1].partition("::")[0]]) + 1
        read = self.read(one.operands[1], "u64")

        def holds(address: np.ndarray) -> np.ndarray:
            return np.searchsorted(STARTS, address, side="right") == number

        return self._result(one.operands[0], "pred", holds, read)

    def _selp(self, one: Instruction) -> Step:
        a, b = (self.read(operand, one.type) for operand in one.operands[1:3])
        chosen = self.predicate(one.operands[3])
        return self._result(one.operands[0], one.type, np.where, chosen, a, b)
