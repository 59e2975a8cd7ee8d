"""Types and signatures of numba_cuda_mlir as Numba's."""

import sys

from numba.core import types

from simt.source import Unsupported


def as_numbas(thing: object) -> object:
    """A type or signature that is made of numba_cuda_mlir's type objects; anything else as it is.

    Raises Unsupported for a type that Numba doesn't have.
    """
    theirs = sys.modules.get("numba_cuda_mlir.types")
    if isinstance(thing, tuple):
        return tuple(map(as_numbas, thing))
    if theirs is None or not type(thing).__module__.startswith("numba_cuda_mlir"):
        return thing
    if hasattr(thing, "return_type"):  # a signature
        return as_numbas(thing.return_type)(*as_numbas(thing.args))
    if not isinstance(thing, theirs.Type):
        return thing
    if isinstance(thing, theirs.Array):
        return types.Array(as_numbas(thing.dtype), thing.ndim, thing.layout, not thing.mutable)
    if isinstance(thing, theirs.BaseTuple):
        return types.Tuple(as_numbas(thing.types))
    found = getattr(types, str(thing), None)
    if found is None:
        raise Unsupported(f"the simulator doesn't support the type {thing} in a signature")
    return found
