"""A CPU's vectors, for functions that Numba compiles.

LLVM turns plain loops into vector instructions by itself, but it decides how many elements a vector
has and which of them stay in registers. Here we decide. An `@unrolled` function is ordinary Python
that runs once, while Numba compiles its caller: each operation on a Value emits one instruction,
and a Python loop is unrolled because it is simply run.

    @unrolled
    def add(a: Pointer, b: Pointer, out: Pointer, SIZE: int) -> None:
        for i in range(0, SIZE, LANES):
            out.store(i, a.load(i) + b.load(i))

Compiled code calls it with an array and an index for each Pointer; an `int` must be a constant:

    add(a, 0, b, 16 * row, out, 0, SIZE)

To keep a loop as a loop, write `for i in loop(0, num_tokens)`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# What the compiler may do to the order of a sum. Not `fastmath=True`, which promises that there is
# no NaN and no infinity; we have both (a NaN from the model, the score -inf of an empty slot).
REORDER = ("contract", "reassoc", "nsz", "arcp", "afn")

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8  # float32 in a register
CACHE_LINE = 64  # bytes that memory delivers at once

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
MIN_EXPONENT = -87.0  # e**-87 is 2**-125.5: the smallest normal float32 is 2**-126

emitting = SimpleNamespace(builder=None)  # receives the instructions


def constant(like: ir.Type, value: float) -> ir.Constant:
    """The value as a `like`; in every element, if that is a vector type."""
    if isinstance(like, ir.VectorType):
        return ir.Constant(like, [constant(like.element, value)] * like.count)
    # Rounded to a float32 here, because LLVM refuses a constant that it would have to round.
    return ir.Constant(like, float(np.float32(value)) if like == FLOAT else int(value))


@dataclass(frozen=True)
class Value:
    """A scalar or a vector in a register: float32, or int64 for an index."""

    ir: ir.Value

    def same(self, other: "Value | float") -> tuple["Value", "Value"]:
        """Both in one type: a number becomes a constant, a scalar fills a vector."""
        if not isinstance(other, Value):
            return self, Value(constant(self.ir.type, other))
        return self.filling(other.ir.type), other.filling(self.ir.type)

    def filling(self, like: ir.Type) -> "Value":
        if not isinstance(like, ir.VectorType) or isinstance(self.ir.type, ir.VectorType):
            return self
        builder, vector = emitting.builder, ir.VectorType(self.ir.type, like.count)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), self.ir, INT32(0))
        return Value(one).shuffled([0] * like.count)

    def shuffled(self, lanes: Sequence[int], other: "Value | None" = None) -> "Value":
        """These elements of this vector followed by the other one, as a new vector."""
        second = (other or self).ir
        mask = ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))
        return Value(emitting.builder.shuffle_vector(self.ir, second, mask))

    def is_float(self) -> bool:
        return getattr(self.ir.type, "element", self.ir.type) == FLOAT

    def operate(self, on_floats: str, on_integers: str, other: "Value | float") -> "Value":
        one, two = self.same(other)
        if one.is_float():
            return Value(getattr(emitting.builder, on_floats)(one.ir, two.ir, flags=REORDER))
        return Value(getattr(emitting.builder, on_integers)(one.ir, two.ir))

    def __add__(self, other: "Value | float") -> "Value":
        return self.operate("fadd", "add", other)

    def __sub__(self, other: "Value | float") -> "Value":
        return self.operate("fsub", "sub", other)

    def __mul__(self, other: "Value | float") -> "Value":
        return self.operate("fmul", "mul", other)

    def __floordiv__(self, other: int) -> "Value":
        return self.operate("", "sdiv", other)  # self must not be negative

    def compare(self, sign: str, other: "Value | float") -> "Value":
        one, two = self.same(other)
        builder = emitting.builder
        make = builder.fcmp_ordered if one.is_float() else builder.icmp_signed
        return Value(make(sign, one.ir, two.ir))

    def __lt__(self, other: "Value | float") -> "Value":
        return self.compare("<", other)

    def __gt__(self, other: "Value | float") -> "Value":
        return self.compare(">", other)

    def to_float(self) -> "Value":
        return Value(emitting.builder.sitofp(self.ir, like_vector(self.ir.type, FLOAT)))


def like_vector(shape: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def select(condition: Value, one: Value, two: Value) -> Value:
    """`one` where the condition holds, else `two`."""
    return Value(emitting.builder.select(condition.ir, one.ir, two.ir))


def maximum(one: Value, two: Value) -> Value:
    """The larger one; `two` where `one` is NaN."""
    return select(one > two, one, two)


def index(number: int) -> Value:
    return Value(INT64(number))


def zeros(width: int = LANES) -> Value:
    return Value(constant(ir.VectorType(FLOAT, width), 0))


def count_up() -> Value:
    """0, 1, 2, ... as float32."""
    return Value(ir.Constant(ir.VectorType(FLOAT, LANES), [float(i) for i in range(LANES)]))


class Variable:
    """A Value that a loop changes: `total = Variable(zeros())`, `total.value += x`."""

    def __init__(self, value: Value) -> None:
        self.memory = cgutils.alloca_once_value(emitting.builder, value.ir)  # LLVM: a register

    @property
    def value(self) -> Value:
        return Value(emitting.builder.load(self.memory))

    @value.setter
    def value(self, value: Value) -> None:
        emitting.builder.store(value.ir, self.memory)


@dataclass(frozen=True)
class Pointer:
    """The elements of an array from one place on: float32, or 16 or 8 bits (see `widened`)."""

    address: ir.Value
    dtype: types.Type

    @property
    def itemsize(self) -> int:
        return self.dtype.bitwidth // 8

    def __add__(self, offset: "Value | int") -> "Pointer":
        offset = offset if isinstance(offset, Value) else index(offset)
        return Pointer(emitting.builder.gep(self.address, [offset.ir]), self.dtype)

    @property
    def number(self) -> Value:
        """The address as an int64."""
        return Value(emitting.builder.ptrtoint(self.address, INT64))

    def of_width(self, offset: "Value | int", width: int) -> ir.Value:
        """The address of `width` elements as a pointer to one vector, or to a scalar for 0."""
        address, element = (self + offset).address, STORED[self.dtype]
        vector = ir.VectorType(element, width) if width else element
        return emitting.builder.bitcast(address, vector.as_pointer())

    def load(self, offset: "Value | int", width: int = LANES) -> Value:
        """A vector of `width` elements as float32, or the scalar for 0."""
        stored = emitting.builder.load(self.of_width(offset, width), align=self.itemsize)
        return widened(stored, self.dtype)

    def store(self, offset: "Value | int", value: Value) -> None:
        width = getattr(value.ir.type, "count", 0)
        stored = narrowed(value, self.dtype)
        emitting.builder.store(stored, self.of_width(offset, width), align=self.itemsize)


STORED = {
    types.float32: FLOAT,
    types.uint16: ir.IntType(16),
    types.int16: ir.IntType(16),
    types.uint8: ir.IntType(8),
    types.int8: ir.IntType(8),
    types.int64: INT64,
}


def widened(stored: ir.Value, dtype: types.Type) -> Value:
    """Converted to float32. Numba has no narrower floats on a CPU, so their bits come as integers:
    uint16 is bfloat16, int16 is float16, uint8 is float8_e4m3fn times E4M3_UNIT, int8 is
    float8_e5m2."""
    builder = emitting.builder
    if dtype in FLOAT16_BITS:
        stored, dtype = FLOAT16_BITS[dtype](stored), types.int16
    if dtype == types.uint16:  # bfloat16 is the upper half of a float32
        bits = builder.zext(stored, like_vector(stored.type, INT32))
        bits = builder.shl(bits, constant(bits.type, 16))
        return Value(builder.bitcast(bits, like_vector(bits.type, FLOAT)))
    if dtype == types.int16:
        halves = builder.bitcast(stored, like_vector(stored.type, ir.HalfType()))
        return Value(builder.fpext(halves, like_vector(stored.type, FLOAT)))
    return Value(stored)


# The exponent of float16 has a bias of 15, that of e4m3 has 7.
E4M3_UNIT = 2.0**-8


def bits_of_e4m3(byte: ir.Value) -> ir.Value:
    """The float16 that is the number times E4M3_UNIT, also if the number is subnormal."""
    builder = emitting.builder
    # Exponent and mantissa go where float16 has them. Bit 14 would be one of the copied signs.
    wide = builder.sext(byte, like_vector(byte.type, ir.IntType(16)))
    bits = builder.and_(builder.shl(wide, constant(wide.type, 7)), constant(wide.type, 0xBFFF))
    # The largest exponent and mantissa are NaN in e4m3, and a number in float16.
    last = constant(wide.type, 0x7F)
    is_nan = builder.icmp_signed("==", builder.and_(wide, last), last)
    return builder.select(is_nan, constant(wide.type, 0x7FFF), bits)


def bits_of_e5m2(byte: ir.Value) -> ir.Value:
    """e5m2 is the upper half of a float16."""
    wide = emitting.builder.zext(byte, like_vector(byte.type, ir.IntType(16)))
    return emitting.builder.shl(wide, constant(wide.type, 8))


FLOAT16_BITS = {types.uint8: bits_of_e4m3, types.int8: bits_of_e5m2}


def narrowed(value: Value, dtype: types.Type) -> ir.Value:
    """Converted for storing, rounded to nearest, ties to even."""
    builder, like = emitting.builder, value.ir.type
    if dtype == types.uint16:
        bits = builder.bitcast(value.ir, like_vector(like, INT32))
        odd = builder.and_(builder.lshr(bits, constant(bits.type, 16)), constant(bits.type, 1))
        rounded = builder.add(bits, builder.add(odd, constant(bits.type, 0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", value.ir, value.ir)  # could round to infinity
        rounded = builder.select(is_nan, constant(bits.type, 0x7FC00000), rounded)
        upper = builder.lshr(rounded, constant(bits.type, 16))
        return builder.trunc(upper, like_vector(like, ir.IntType(16)))
    if dtype == types.int16:
        halves = builder.fptrunc(value.ir, like_vector(like, ir.HalfType()))
        return builder.bitcast(halves, like_vector(like, ir.IntType(16)))
    return value.ir


def chunks(size: int) -> Iterator[tuple[int, int]]:
    """(start, width) of the vectors that make up `size` elements; the last ones are narrower."""
    start, width = 0, LANES
    while start < size:
        while start + width > size:
            width //= 2
        yield start, width
        start += width


def padded(vector: Value) -> Value:
    """The vector filled up to a whole register with zeros."""
    count = vector.ir.type.count
    if count == LANES:
        return vector
    return vector.shuffled([i if i < count else count for i in range(LANES)], zeros(count))


def sums(vectors: Sequence[Value]) -> Value:
    """The sums of 1, 2, 4, ... vectors, as one vector with one element per sum."""
    half, length = vectors[0].ir.type.count // 2, vectors[0].ir.type.count
    while half:
        # Each vector holds pieces of 2 * half elements: add the second half of each to the first.
        firsts = [i for i in range(length) if i % (2 * half) < half]
        if len(vectors) > 1:  # the pieces of two vectors fit into one
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
            lanes = firsts + [length + i for i in firsts]
        else:
            pairs, lanes, length = [(vectors[0], vectors[0])], firsts, length // 2
        vectors = [
            a.shuffled(lanes, b) + a.shuffled([i + half for i in lanes], b) for a, b in pairs
        ]
        half //= 2
    return vectors[0]


def largest(vector: Value) -> Value:
    """The largest element; a NaN counts only if all are."""
    half = vector.ir.type.count // 2
    while half:
        vector = maximum(vector.shuffled(range(half)), vector.shuffled(range(half, 2 * half)))
        half //= 2
    return element(vector, 0)


def element(vector: Value, lane: int) -> Value:
    return Value(emitting.builder.extract_element(vector.ir, INT32(lane)))


def e_to_the(x: Value) -> Value:
    """e**x for x <= 0, exactly 0 below MIN_EXPONENT; for a scalar or a vector."""
    builder = emitting.builder
    # e**x = 2**n * e**r, with n a whole number and |r| <= ln(2) / 2
    y = select(x < MIN_EXPONENT, x.same(MIN_EXPONENT)[1], x) * LOG2_E
    n = Value(builder.fptosi((y - 0.5).ir, like_vector(y.ir.type, INT32)))
    r = (y - n.to_float()) * LN_2
    # e**r = 1 + r + r**2 / 2! + ... + r**6 / 6!
    e_r = r * (1 / 720) + 1 / 120
    for coefficient in (1 / 24, 1 / 6, 1 / 2, 1, 1):
        e_r = e_r * r + coefficient
    bits = (n + 127).ir
    power = builder.shl(bits, constant(bits.type, 23))  # 2**n, from its bits
    power = Value(builder.bitcast(power, like_vector(bits.type, FLOAT)))
    return select(x < MIN_EXPONENT, x.same(0)[1], e_r * power)


def loop(start: "Value | int", stop: Value, step: int = 1) -> Iterator[Value]:
    """`for i in loop(start, stop)`: the body is emitted once and runs for each i."""
    builder = emitting.builder
    start = start.ir if isinstance(start, Value) else INT64(start)
    with cgutils.for_range_slice(builder, start, stop.ir, INT64(step), inc=True) as (i, _):
        yield Value(i)


def when(condition: Value) -> Iterator[None]:
    """`for _ in when(condition)`: the body is emitted once and runs if the condition holds."""
    with emitting.builder.if_then(condition.ir):
        yield


def prefetch(address: Value) -> None:
    """Load the cache line of an address without waiting. No address is an error."""
    builder, bytes_pointer = emitting.builder, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_pointer, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, to_l1, of_data = INT32(0), INT32(3), INT32(1)
    place = builder.inttoptr(address.ir, bytes_pointer)
    builder.call(function, [place, to_read, to_l1, of_data])


def fetch_add(counter: Pointer, amount: int) -> Value:
    """Add to an int64 that other cores add to as well; returns what it was before."""
    return Value(emitting.builder.atomic_rmw("add", counter.address, INT64(amount), "acq_rel"))


def call(function: Value, *arguments: Value) -> None:
    """Call what is compiled at an address."""
    builder = emitting.builder
    kind = ir.FunctionType(ir.VoidType(), [argument.ir.type for argument in arguments])
    pointer = builder.inttoptr(function.ir, kind.as_pointer())
    builder.call(pointer, [argument.ir for argument in arguments])


RETURNED = {None: types.void, Value: types.float32, int: types.int64}


def unrolled(function: Callable) -> Callable:
    """Make a function that compiled code can call: see the top of this file.

    Its parameters are annotated: Pointer (an array and an index are passed), int (a constant, known
    while Numba compiles), Value (a float32 or an int64). It returns a Value: a float32, or an int64
    where the annotation says int.
    """
    stated = inspect.signature(function)
    wanted, returned = stated.parameters.values(), RETURNED[stated.return_annotation]
    names = ["typing_context"]
    for parameter in wanted:
        names += [parameter.name] + [f"{parameter.name}_at"] * (parameter.annotation is Pointer)

    def make(context, builder, signature, args):
        left = list(zip(signature.args, args, strict=True))
        arguments = []
        for parameter in wanted:
            kind, value = left.pop(0)
            if parameter.annotation is Pointer:
                is_array = isinstance(kind, types.Array)
                data = context.make_array(kind)(context, builder, value).data if is_array else value
                at_kind, at = left.pop(0)
                at = context.cast(builder, at, at_kind, types.int64)
                pointer = builder.bitcast(data, STORED[kind.dtype].as_pointer())
                arguments.append(Pointer(builder.gep(pointer, [at]), kind.dtype))
            elif parameter.annotation is int:
                arguments.append(kind.literal_value)
            else:
                to = types.int64 if isinstance(kind, types.Integer) else types.float32
                arguments.append(Value(context.cast(builder, value, kind, to)))
        emitting.builder = builder
        result = function(*arguments)
        return context.get_dummy_value() if result is None else result.ir

    def declare(typing_context, *kinds):
        return returned(*kinds), make

    # Numba asks for the names of the parameters; a Pointer has two.
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    declare.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in names])
    declare.__name__, declare.__doc__ = function.__name__, function.__doc__
    return intrinsic(prefer_literal=True)(declare)
