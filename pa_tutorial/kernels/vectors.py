"""How a vec is read: up to 16 bytes at once.

Python can't express such a load: a[i], a[i + 1] are two loads of one element each, and a compiler
that knows nothing about the address can't join them. So an intrinsic gives the instruction to the
compiler, and its twin gives it to the simulator. Everything specific to one compiler is in this
file, in `numba_cuda`. For another compiler, write a similar function and make it COMPILER.
"""

from collections.abc import Callable, Sized
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from pa_tutorial.arguments import whole_number
from pa_tutorial.kernels.geometry import VEC_BYTES
from simt import LaneAccess, twin
from simt.memory import Array

WORD_BYTES = 4  # a load moves one, two or four words; of a shorter vector, one that is as long


class VectorAccess(NamedTuple):
    """What a compiler must offer, for vectors of one length. Index and values are in elements.

    load(array, index)           a tuple of neighbours, from one address
    store(array, index, values)  a tuple of neighbours, to one address
    widen(floats, values)        a tuple of neighbours as float32, to an array of registers

    The address must be a multiple of the vector's size; otherwise the GPU stops the kernel.
    """

    load: Callable
    store: Callable
    widen: Callable


# What a compiler does ------------------------------------------------------------------------


def numba_cuda(count: int) -> VectorAccess:
    """The instructions for numba-cuda, as intrinsics: Python functions that write LLVM IR.

    The vector is loaded as words of 4 bytes, whatever its elements are. (NVIDIA's compiler would
    split a vector of four float16 in two, but it doesn't split words.) One or two bytes, of an
    8-bit cache, are one word of that size.
    """
    from llvmlite import ir
    from numba.core import types
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    word = ir.IntType(8 * WORD_BYTES)

    def address(context, builder, array_type, array, index) -> ir.Value:
        struct = context.make_array(array_type)(context, builder, array)
        return cgutils.get_item_pointer(
            context, builder, array_type, struct, [index], wraparound=False
        )

    def pointer_to_words(context, builder, signature, args) -> tuple[ir.Value, int, int]:
        """The element's address as a pointer to words, and the vector's size in words and bytes."""
        array_type, index_type = signature.args[:2]
        num_bytes = count * array_type.dtype.bitwidth // 8
        word_bytes = min(WORD_BYTES, num_bytes)
        index = context.cast(builder, args[1], index_type, types.intp)
        element = address(context, builder, array_type, args[0], index)
        words = ir.VectorType(ir.IntType(8 * word_bytes), num_bytes // word_bytes)
        return builder.bitcast(element, words.as_pointer()), num_bytes // word_bytes, num_bytes

    @intrinsic
    def load(typingctx, array, index):
        signature = types.UniTuple(array.dtype, count)(array, index)

        def codegen(context, builder, signature, args):
            pointer, num_words, num_bytes = pointer_to_words(context, builder, signature, args)
            words = builder.load(pointer, align=num_bytes)
            # One word at a time becomes its elements: one float32, two of 16 bits, four bytes.
            element = context.get_data_type(signature.args[0].dtype)
            of_a_word = ir.VectorType(element, count // num_words)
            elements = []
            for w in range(num_words):
                bits = builder.extract_element(words, ir.Constant(word, w))
                pair = builder.bitcast(bits, of_a_word)
                for e in range(count // num_words):
                    elements.append(builder.extract_element(pair, ir.Constant(word, e)))
            return context.make_tuple(builder, signature.return_type, elements)

        return signature, codegen

    @intrinsic
    def store(typingctx, array, index, values):
        require_length("store", values, count)
        signature = types.void(array, index, values)

        def codegen(context, builder, signature, args):
            pointer, _, num_bytes = pointer_to_words(context, builder, signature, args)
            element = context.get_data_type(signature.args[0].dtype)
            vector = ir.Constant(ir.VectorType(element, count), ir.Undefined)
            for e in range(count):
                value = builder.extract_value(args[2], e)
                vector = builder.insert_element(vector, value, ir.Constant(word, e))
            words = builder.bitcast(vector, pointer.type.pointee)
            builder.store(words, pointer, align=num_bytes)
            return context.get_dummy_value()

        return signature, codegen

    @intrinsic
    def widen(typingctx, floats, values):
        require_length("widen", values, count)
        signature = types.void(floats, values)

        def codegen(context, builder, signature, args):
            array_type, tuple_type = signature.args
            for e in range(count):
                value = builder.extract_value(args[1], e)
                if tuple_type.dtype == types.uint16:  # bfloat16: the upper half of a float32
                    upper = builder.shl(builder.zext(value, word), ir.Constant(word, 16))
                    value = builder.bitcast(upper, ir.FloatType())
                else:
                    value = context.cast(builder, value, tuple_type.dtype, types.float32)
                place = context.get_constant(types.intp, e)
                builder.store(value, address(context, builder, array_type, args[0], place))
            return context.get_dummy_value()

        return signature, codegen

    return VectorAccess(load, store, widen)


def no_compiler(count: int) -> VectorAccess:
    """Without a compiler (numba-cuda has no wheels for macOS), the simulator's twins remain."""
    return VectorAccess(*(lambda *arguments: None for _ in VectorAccess._fields))


COMPILER = numba_cuda if find_spec("numba_cuda") else no_compiler


# What the simulator does ---------------------------------------------------------------------


def vector_access(count: int) -> VectorAccess:
    """load and store of `count` elements, at most 16, for a kernel and for the simulator."""
    return _vector_access(whole_number("count", count, 1, VEC_BYTES))


@cache
def _vector_access(count: int) -> VectorAccess:
    access = COMPILER(count)

    @twin(access.load, writes=())
    def _load(lanes: LaneAccess, array: Array, index: object) -> tuple[np.ndarray, ...]:
        require_one_axis("load", array, index)
        return lanes.load(array, index, count)

    @twin(access.store, writes=(0,))
    def _store(lanes: LaneAccess, array: Array, index: object, values: tuple) -> None:
        require_one_axis("store", array, index)
        require_length("store", values, count)
        lanes.store(array, index, values)

    @twin(access.widen, writes=(0,))
    def _widen(lanes: LaneAccess, floats: Array, values: tuple) -> None:
        require_one_axis("widen", floats, 0)
        require_length("widen", values, count)
        for e, value in enumerate(values):
            lanes.store(floats, e, (as_float(value),))

    return access


def require_one_axis(name: str, array: Array, index: object) -> None:
    """Raises TypeError for what the compiler refuses too."""
    if isinstance(index, tuple) or len(array.shape) != 1:
        raise TypeError(
            f"{name} takes an array with one axis and one index, but {array.name} has "
            f"{len(array.shape)} axes: slice it first, as in {name}(a[i, j], k)"
        )


def require_length(name: str, values: Sized, count: int) -> None:
    """Raises TypeError for a tuple that a load of another length returned, or its type."""
    if len(values) != count:
        raise TypeError(
            f"this {name} moves {count} elements, and its tuple has {len(values)}: {name} and load "
            "must be of the same vector_access"
        )


def as_float(value: np.ndarray) -> np.ndarray:
    """Converted to float32 from float32, float16, or bfloat16 stored as uint16."""
    if value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value.astype(np.float32)
