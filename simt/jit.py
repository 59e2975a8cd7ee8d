"""A cuda.jit that takes a signature without a GPU: @cuda.jit("void(int32[:], int32)").

Numba compiles such a kernel at once, for the GPU that it finds; without one, the decorator fails.
So `simulate` and `simt.cuda` have a `jit` that remembers signatures, and lets Numba compile for
them only where there is a GPU.
"""

from collections.abc import Callable
from functools import wraps

from numba.cuda import is_available  # itself: `simulated` replaces the name in numba.cuda

from simt.private_names import is_signature, normalize_signature
from simt.program import note_what_is_compiled_in
from simt.signatures import DECLARED
from simt.successor_types import as_numbas


def remembering(numba_jit: Callable) -> Callable:
    """cuda.jit, but we also remember the signatures of what it returns."""

    @wraps(numba_jit)
    def jit(func_or_sig: object = None, *args: object, **options: object) -> Callable:
        given = func_or_sig if isinstance(func_or_sig, list) else [func_or_sig]
        signatures = list(map(as_numbas, given))
        if not all(is_signature(one) for one in signatures):
            return numba_jit(func_or_sig, *args, **options)
        declared = [normalize_signature(one) for one in signatures]

        def decorate(function: Callable) -> Callable:
            now = func_or_sig if is_available() else None
            made = numba_jit(now, *args, **options)(function)
            DECLARED[made] = declared if isinstance(func_or_sig, list) else declared[0]
            note_what_is_compiled_in(made)
            return made

        return decorate

    return jit
