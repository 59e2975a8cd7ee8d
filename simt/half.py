"""cuda.fp16: arithmetic in half precision, rounded once."""

import operator
from collections.abc import Callable

import numpy as np

from simt.arithmetic import BOOL, FLOAT16, FLOAT64, Misuse, Value, cast, plain
from simt.lanes import Frame


def _of_halves(function: Callable, result: np.dtype) -> Callable:
    """Computed in float64, where sums and products of halves are exact."""

    count = getattr(function, "nin", None)  # NumPy would take one more, for the result

    def apply(frame: Frame, place: int, *values: Value) -> Value:
        if count not in (None, len(values)):
            raise Misuse(f"this function of cuda.fp16 was given {len(values)} numbers, not {count}")
        wide = [cast(cast(value, FLOAT16), FLOAT64) for value in values]
        return plain(cast(plain(np.asarray(function(*wide))[()]), result))

    return apply


NUMBERS: dict[str, Callable] = {
    **{f"h{name}": getattr(operator, name) for name in ("add", "sub", "mul", "neg", "abs")},
    **{f"h{name}": getattr(np, name) for name in ("ceil", "floor", "trunc", "rint")},
    **{f"h{name}": getattr(np, name) for name in ("cos", "sin", "tanh", "sqrt")},
    **{f"h{name}": getattr(np, name) for name in ("exp", "exp2", "log", "log2", "log10")},
    "hexp10": lambda x: np.power(10.0, x),
    "hrcp": lambda x: np.divide(1.0, x),
    "hrsqrt": lambda x: np.divide(1.0, np.sqrt(x)),
    "hdiv": np.divide,
    "hmax": np.fmax,
    "hmin": np.fmin,
    "hfma": lambda a, b, c: a * b + c,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
HALF_FUNCTIONS: dict[str, Callable] = {
    **{f"fp16.{name}": _of_halves(function, FLOAT16) for name, function in NUMBERS.items()},
    **{f"fp16.h{name}": _of_halves(getattr(operator, name), BOOL) for name in COMPARISONS},
}
