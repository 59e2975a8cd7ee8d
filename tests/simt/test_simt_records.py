"""Records: the same numbers as in compiled code, and checks by bytes."""

from itertools import product

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import (
    create_xoroshiro128p_states,
    xoroshiro128p_next,
    xoroshiro128p_uniform_float32,
)
from numba.np.numpy_support import from_dtype

from simt import SimtError, Unsupported, launch, simulated
from simt import cuda as our_cuda
from tests.simt.helpers import kernel
from tests.simt.kernels.records import BALL, balls

# The same fields with and without gaps, and some that share bytes
LAYOUTS = [
    np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", (3,)), ("d", "u4")], align=True),
    np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", (3,)), ("d", "u4")]),
    np.dtype({"a": ("u8", 0), "b": ("u4", 2), "c": ("u4", 6), "d": ("i4", 8)}),
]


def bytes_of(dtype: np.dtype, name: str, record: int) -> set[int]:
    part, offset = dtype.fields[name][:2]
    first = record * dtype.itemsize + offset
    return {*range(first, first + part.itemsize)}


def write(dtype: np.dtype, name: str, record: int) -> str:
    return f"a.{name}[{record}{', :' if dtype[name].shape else ''}] = 1"


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_two_threads_race_if_their_fields_share_a_byte(dtype: np.dtype) -> None:
    for first, second, record in product(dtype.names, dtype.names, (0, 1)):
        one, other = write(dtype, first, 0), write(dtype, second, record)
        split = kernel("a", f"if t == 0:\n    {one}\nelse:\n    {other}")
        shared = bytes_of(dtype, first, 0) & bytes_of(dtype, second, record)
        report = launch(split, 1, 2, np.zeros(3, dtype), collect=True)
        assert bool(report.findings) == bool(shared), (first, second, record)


@pytest.mark.parametrize("step", [1, -2])
@pytest.mark.parametrize("dtype", LAYOUTS)
def test_a_field_in_a_part_of_an_array_is_numpys(dtype: np.dtype, step: int) -> None:
    data = np.random.default_rng(0).bytes(16 * dtype.itemsize)
    for name in dtype.names:
        ours, numpys = bytearray(data), bytearray(data)
        a, expected = (np.frombuffer(memory, dtype)[::step] for memory in (ours, numpys))
        out, index = np.zeros(7, dtype[name].base), "t, 1" if dtype[name].shape else "t"
        body = f"part = a[1:]\nout[t] = part.{name}[{index}]\npart['{name}'][{index}] = t"
        of_name = expected[name][1:8, 1] if dtype[name].shape else expected[name][1:8]
        before = of_name.copy()
        launch(kernel("out, a", body), 1, 7, out, a)
        np.testing.assert_array_equal(out, before)
        of_name[:] = np.arange(7)
        assert ours == numpys


# Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.ndarray, np.recarray])
def test_a_record_is_passed_by_reference(kind: type) -> None:
    array = balls(np.random.default_rng(0), 3)
    before, record = array.copy(), array.view(kind)[1]
    launch(kernel("r", "r.x = 2.5\nr['hits'] -= 1\nr['v'][1] = r.x + 1"), 1, 1, record)
    before["x"][1], before["hits"][1], before["v"][1, 1] = 2.5, before["hits"][1] - 1, 3.5
    np.testing.assert_array_equal(array, before)


def test_a_signature_may_have_records() -> None:
    record, a = from_dtype(BALL), balls(np.random.default_rng(0), 4)
    with simulated():
        change = cuda.jit((record[:], record))(kernel("a, r", "a[t] = r").py_func)
        change[1, 2](a, a[3])
    assert a["x"][0] == a["x"][1] == a["x"][3]


def test_records_and_numbers_share_the_dynamic_memory_of_each_thread_block() -> None:
    """Records of 12 bytes, of which no multiple begins where every thread block's 128 bytes do."""
    body = """
        r = cuda.shared.array(0, three)
        s = cuda.shared.array(0, float32)
        s[t] = cuda.grid(1)
        cuda.syncthreads()
        out[cuda.grid(1)] = r[0].z
    """
    out, three = np.zeros(192), np.dtype([(name, "f4") for name in "xyz"])
    launch(kernel("out", body, three=three), 6, 32, out, shared_bytes=128)
    np.testing.assert_array_equal(out, np.repeat(32 * np.arange(6) + 2, 32))


def test_a_finding_names_the_record_and_its_field() -> None:
    body = "r = a[t // 2 + 3]\nr.v[t % 2] = 1\nr.box.high = 1"
    with pytest.raises(SimtError, match=r"thread 1 .* a\[3\].box.high, which thread 0 wrote"):
        launch(kernel("a", body), 1, 32, np.zeros(32, BALL))


def test_fields_of_two_layouts_are_not_one_variable() -> None:
    """The same bytes as records of 12 and of 24: in both, the next x is 3 steps further."""
    a = np.zeros(8, np.dtype([("x", "f8"), ("y", "f4")]))
    b = a.view(np.dtype([("x", "f8"), ("y", "f8", (2,))]))
    body = "x = a.x\nif t:\n    x = b.x\nout[t] = x[0]"
    with pytest.raises(Unsupported, match="different arrays in different lanes"):
        launch(kernel("a, b, out", body), 1, 2, a, b, np.zeros(2))


# Random numbers ------------------------------------------------------------------------------


def test_random_numbers_are_numbas_without_a_gpu() -> None:
    with simulated():
        made = create_xoroshiro128p_states(8, seed=3, subsequence_start=1).copy_to_host()
    states = our_cuda.random.create_xoroshiro128p_states(8, seed=3, subsequence_start=1)
    np.testing.assert_array_equal(states.copy_to_host(), made)
    raw, out = np.zeros(8, np.uint64), np.zeros(8)
    body = "raw[t] = next(s, t)\nout[t] = uniform(s, t)"
    names = {"next": xoroshiro128p_next, "uniform": xoroshiro128p_uniform_float32}
    launch(kernel("s, raw, out", body, **names), 1, 8, states, raw, out)
    assert raw.tolist() == [xoroshiro128p_next(made, i) for i in range(8)]  # on the CPU
    assert out.tolist() == [xoroshiro128p_uniform_float32(made, i) for i in range(8)]


def test_an_array_without_dimensions_is_not_a_record() -> None:
    with pytest.raises(TypeError, match=r"r is an array without dimensions; pass .* r\[\(\)\]"):
        launch(kernel("r", "r.x = 1"), 1, 1, np.zeros((), BALL))
