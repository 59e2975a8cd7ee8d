"""Random expressions of all types: the simulator beside Numba's PTX.

    python -m tests.simt.differential --seed 1 --count 2000

counts the expressions whose results have the same bits, and prints every one that differs. It
needs numba-cuda, and no GPU.
"""

import argparse
import math
import operator
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple
from unittest import mock

import numpy as np
from numba import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import from_dtype

from simt import launch
from simt.printing import print_anything
from simt.ptx import run_ptx
from simt.ptx.instructions import FLOAT
from tests.simt.kernels.example import from_text

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
TYPES = ("bool", *INTEGERS, *FLOATS)
LANES = 128
PER_KERNEL = 20  # expressions that are compiled together
NAMES = {name: getattr(types, name) for name in (*INTEGERS, *FLOATS)} | {"math": math}
INFIX = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv},
    **{"//": operator.floordiv, "%": operator.mod, "**": operator.pow},
    **{"<<": operator.lshift, ">>": operator.rshift},
    **{"&": operator.and_, "|": operator.or_, "^": operator.xor},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    **{"==": operator.eq, "!=": operator.ne},
}
PREFIX = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
PYTHONS = {f.__name__: f for f in (abs, min, max, int, float, bool, round)}
EXACT = ("floor", "ceil", "trunc", "fabs", "copysign", "sqrt", "isnan", "isinf", "isfinite")
NEAR = ("exp", "exp2", "log", "log2", "log10", "tanh", "atan", "hypot", "pow")
OF_TWO = ("min", "max", "copysign", "hypot", "pow")
# The largest relative difference between two libraries' functions.
NEARLY = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}


class Expression(NamedTuple):
    """text over x_int8[t], y_int8[t] and so on, and Numba's type of it

    near       a function that libraries round differently
    converted  a float that had another type: if it becomes an integer, the compiler may convert
               the first number, and out of range that isn't the same
    overflows  a sum or product of signed integers, or made of one: its overflow is undefined to
               the compiler, although the result wraps
    stored     the type of the array that takes the result
    """

    text: str
    type: str
    near: bool = False
    converted: bool = False
    overflows: bool = False
    stored: str = ""

    @property
    def is_float(self) -> bool:
        return self.type in FLOATS


@cache
def type_of(function: Callable, *names: str) -> str | None:
    """The type of the result in numba.cuda; None: there is no such operation."""
    try:
        found = _typing().resolve_function_type(function, tuple(map(_numba_type, names)), {})
    except NumbaError:
        return None
    return str(found.return_type) if found and str(found.return_type) in TYPES else None


@cache
def _typing() -> object:
    from numba.cuda.target import CUDATypingContext

    context = CUDATypingContext()
    context.refresh()
    return context


def _numba_type(name: str) -> types.Type:
    return from_dtype(np.dtype(name))


class Writer:
    """Writes random expressions; the seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed).choice

    def expression(self, depth: int) -> Expression:
        """Of forms that have a type and are defined; where one isn't, another is tried."""
        forms = self._infix, self._infix, self._prefix, self._cast, self._function, self._choice
        while depth:
            parts = [self.part(depth - 1) for _ in range(3)]
            found = self.pick(forms)(*parts)
            if found and found.type:
                overflows = found.overflows or any(part.overflows for part in parts)
                return found._replace(overflows=overflows)
        name = self.pick(TYPES)
        return Expression(f"{self.pick('xy')}_{name}[t]", name)

    def part(self, depth: int) -> Expression:
        """One whose bits are certain. Half precision is only converted: its arithmetic isn't in
        the PTX that Numba makes."""
        while (found := self.expression(self.pick(range(depth + 1)))).near:
            pass
        if found.type != "float16":
            return found
        name = self.pick(("float32", "float64", "int32"))
        return Expression(f"{name}({found.text})", name, converted=found.converted)

    def stored(self) -> Expression:
        """One to be stored, most often without a conversion."""
        found = self.expression(3)
        stored = found.type if found.near else self.pick([found.type] * len(TYPES) + [*TYPES])
        to_integer = found.is_float and stored in INTEGERS
        if (to_integer and found.converted) or (found.type, stored) == ("float16", "bool"):
            return self.stored()
        return found._replace(stored=stored)

    def _infix(self, a: Expression, b: Expression, *_more: Expression) -> Expression | None:
        sign, is_float = self.pick([*INFIX]), a.is_float or b.is_float
        near = sign == "**" and is_float
        if sign in ("<<", ">>") and not is_float:
            b = Expression(f"({b.text} & 31)", "int64")
        if sign in ("//", "%") and not is_float:  # by anything but zero
            b = Expression(f"({b.text} | 1)", type_of(operator.or_, b.type, "int64"))
        if sign == "**" and not b.is_float:  # not the lowest number, for which Numba raises
            low, far = f"int8({b.text})", f"(int32({b.text}) >> 1)"
            b = Expression(self.pick((low, far)), "int64")
            near = near and b.text == far
        type_ = type_of(INFIX[sign], a.type, b.type)
        if type_ == "bool" and (a.overflows or b.overflows):
            return None  # the compiler takes x - y >= x for y <= 0
        overflows = sign in ("+", "-", "*") and type_ == "int64"
        return Expression(f"({a.text} {sign} {b.text})", type_, near, overflows=overflows)

    def _prefix(self, a: Expression, *_more: Expression) -> Expression:
        sign = self.pick([*PREFIX])
        return Expression(f"({sign}{a.text})", type_of(PREFIX[sign], a.type), converted=a.converted)

    def _cast(self, a: Expression, *_more: Expression) -> Expression | None:
        name = self.pick((*INTEGERS, *FLOATS))
        to_integer = a.is_float and name in INTEGERS
        if to_integer and (a.converted or name.endswith("int8")):
            return None  # in a register, compiled code may keep more than 8 bits
        converted = name in FLOATS and (a.converted or name != a.type)
        return Expression(f"{name}({a.text})", name, converted=converted)

    def _function(self, a: Expression, b: Expression, *_more: Expression) -> Expression | None:
        name = self.pick((*PYTHONS, *EXACT, *NEAR))
        arguments = (a, b) if name in OF_TWO else (a,)
        types_ = [one.type for one in arguments]
        function = PYTHONS.get(name) or getattr(math, name)
        type_ = type_of(function, *types_)
        to_integer = a.is_float and type_ in INTEGERS
        if (name in ("min", "max") and "bool" in types_) or (to_integer and a.converted):
            return None
        text = f"{'' if name in PYTHONS else 'math.'}{name}"
        call = f"{text}({', '.join(one.text for one in arguments)})"
        converted = any(one.converted or one.type != type_ for one in arguments)
        return Expression(call, type_, name in NEAR, converted)

    def _choice(self, a: Expression, b: Expression, c: Expression) -> Expression | None:
        text = f"({a.text} if {b.text} else {c.text})"
        return (
            Expression(text, a.type, converted=a.converted or c.converted)
            if a.type == c.type
            else None
        )


def columns(seed: int) -> dict[str, np.ndarray]:
    """x_int8 and so on: edges of all types, as far as each has them."""
    draw = np.random.default_rng(seed)
    ends = [2.0**n for n in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64)]
    floats = [0, 0.5, 1, 1.5, 2.5, 3, 0.1, 1e-45, 1e-41, 6e-8, 65504, 3.4e38, 1e300, np.inf, np.nan]
    floats += [step for end in ends for step in (end, np.nextafter(end, 0), end - 1, end + 1)]
    floats = np.array([*floats, *draw.standard_normal(20) * 10.0 ** draw.integers(-3, 6, 20)])
    found = {}
    for name in TYPES:
        dtype = np.dtype(name)
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                pool = np.concatenate([floats, -floats]).astype(dtype)
        elif name == "bool":
            pool = np.array([False, True])
        else:
            limits = np.iinfo(dtype)
            whole = [0, 1, 2, 3, 7, -1, -2, -7, limits.max, limits.max - 1, limits.min]
            whole += [limits.min + 1, limits.max // 2 + 1]
            pool = np.array([n for n in whole if limits.min <= n], dtype)
            pool = np.concatenate([pool, draw.integers(-20 * (dtype.kind == "i"), 20, 9, dtype)])
        found |= {f"{letter}_{name}": draw.choice(pool, LANES) for letter in "xy"}
    return found


# Running them ------------------------------------------------------------------------------------


def simulated(kernel: Callable, *arrays: np.ndarray) -> None:
    launch(kernel, 1, LANES, *arrays, checks=())


def compiled(kernel: Callable, *arrays: np.ndarray) -> None:
    run_ptx(kernel, 1, LANES, *arrays, checks=(), lineinfo=False)


def unfused(kernel: Callable, *arrays: np.ndarray) -> None:
    """As compiled, but a fused multiply-add rounds its product, too."""
    with mock.patch.dict(FLOAT, dict.fromkeys(("fma", "mad"), lambda a, b, c: a * b + c)):
        compiled(kernel, *arrays)


def computed(how: Callable, several: list[Expression], inputs: dict) -> list[np.ndarray | str]:
    """What each gives, or the error that it raises when it is run alone."""
    text = " ".join(one.text for one in several)
    needed = {name: items for name, items in inputs.items() if name in text}
    out = {f"o_{one.stored}": np.zeros((len(several), LANES), one.stored) for one in several}
    lines = [f"o_{one.stored}[{n}, t] = {one.text}" for n, one in enumerate(several)]
    body = "\n".join(["t = cuda.threadIdx.x", *lines])
    try:
        how(from_text("kernel", ", ".join([*out, *needed]), body, NAMES), *(out | needed).values())
    except Exception as error:
        if len(several) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [result for one in several for result in computed(how, [one], inputs)]
    return [out[f"o_{one.stored}"][n] for n, one in enumerate(several)]


def differing(one: np.ndarray | str, other: np.ndarray | str, near: float = 0) -> np.ndarray:
    """The lanes whose results differ: in a bit that isn't one of NaN's, or by more than this."""
    if isinstance(one, str) or isinstance(other, str):
        return np.array([0])
    same = one.view(f"u{one.itemsize}") == other.view(f"u{one.itemsize}")
    same |= (one != one) & (other != other)
    if near:
        same |= np.isclose(one, other, rtol=near, atol=np.finfo(one.dtype).smallest_normal)
    return np.flatnonzero(~same)


def compare(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """(outcome, what to print about it) of each expression."""
    writer, inputs = Writer(seed), columns(seed)
    for first in range(0, count, PER_KERNEL):
        several = [writer.stored() for _ in range(min(PER_KERNEL, count - first))]
        with np.errstate(all="ignore"):
            ways = [computed(how, several, inputs) for how in (simulated, compiled)]
            for one, simt, ptx in zip(several, *ways, strict=True):
                yield _outcome(one, simt, ptx, inputs)


def _outcome(one: Expression, simt: object, ptx: object, inputs: dict) -> tuple[str, str]:
    if isinstance(ptx, str):
        return "Numba or run_ptx refuses it", f"{one.text}: {ptx.splitlines()[0]}"
    if not len(differing(simt, ptx)):
        return "the same bits", ""
    if one.near and not len(differing(simt, ptx, NEARLY[one.type])):
        return "nearly the same: exp and the like", ""
    (two_steps,) = computed(unfused, [one], inputs)
    if one.near or len(differing(simt, two_steps)):
        return "differs", _told(one, simt, ptx, inputs)
    return "the same bits, but for a fused multiply-add", ""


def _told(one: Expression, simt: object, ptx: np.ndarray, inputs: dict) -> str:
    if isinstance(simt, str):
        return f"{one.text}: {simt}"
    t = differing(simt, ptx)[0]
    values = ", ".join(f"{n} = {x[t]!r}" for n, x in inputs.items() if f"{n}[t]" in one.text)
    return f"{one.stored}: {one.text}: {simt[t]!r}, not {ptx[t]!r} ({values})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for outcome, told in compare(given.seed, given.count):
        outcomes[outcome] += 1
        if told:
            print(f"{outcome}: {told}")
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:6,}  {outcome}")
    return 1 if any("differs" in outcome for outcome in outcomes) else 0


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
