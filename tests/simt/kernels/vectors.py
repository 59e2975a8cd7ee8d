"""An intrinsic that loads neighbours at once, as compiler and simulator see it."""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from simt import LaneAccess, twin
from simt.memory import Array


def compiled_load(count: int) -> Callable:
    """For the compiler: one instruction, whose address must be a multiple of the vector's size."""
    from llvmlite import ir
    from numba.core import types
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    @intrinsic
    def load(typingctx, array, index):
        def codegen(context, builder, signature, args):
            array_type, index_type = signature.args
            index = context.cast(builder, args[1], index_type, types.intp)
            struct = context.make_array(array_type)(context, builder, args[0])
            item = cgutils.get_item_pointer(context, builder, array_type, struct, [index])
            vector = ir.VectorType(context.get_data_type(array_type.dtype), count)
            num_bytes = count * array_type.dtype.bitwidth // 8
            found = builder.load(builder.bitcast(item, vector.as_pointer()), align=num_bytes)
            places = (ir.Constant(ir.IntType(32), n) for n in range(count))
            items = [builder.extract_element(found, place) for place in places]
            return context.make_tuple(builder, signature.return_type, items)

        return types.UniTuple(array.dtype, count)(array, index), codegen

    return load


def vector_load(count: int) -> Callable:
    """load(array, index): a tuple of `count` neighbours. Without a compiler its twin remains."""
    load = compiled_load(count) if find_spec("numba_cuda") else lambda array, index: None

    @twin(load, writes=())
    def _load(lanes: LaneAccess, array: Array, index: object) -> tuple[np.ndarray, ...]:
        return lanes.load(array, index, count)

    return load
