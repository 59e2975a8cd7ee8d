"""Loads of 4, 8 and 16 bytes: the intrinsics and their twins."""

import numpy as np
import pytest
import torch
from numba import cuda, njit
from numba.core import extending

from pa_tutorial.kernels import vectors
from simt import Unsupported, launch

pytestmark = pytest.mark.cuda_v1_vector
needs_the_compiler = pytest.mark.needs("numba-cuda")
KEPT = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
SIZES = [(name, count) for name in KEPT for count in (1, 2, 4, 8)]
# 4, 8 or 16 bytes at once, of whole words
VECTORS = [(n, c) for n, c in SIZES if c * np.dtype(KEPT[n]).itemsize in (4, 8, 16)]
by_vector = pytest.mark.parametrize(("name", "count"), VECTORS)


def numbers(name: str, size: int) -> np.ndarray:
    """Every element another number; as bfloat16, their bits."""
    values = torch.arange(1, size + 1, dtype=torch.float32) / 8 - 3
    if name == "bfloat16":
        return values.bfloat16().view(torch.uint16).numpy()
    return values.numpy().astype(KEPT[name])


def as_float32(name: str, stored: np.ndarray) -> np.ndarray:
    if name == "bfloat16":
        return torch.from_numpy(stored).view(torch.bfloat16).float().numpy()
    return stored.astype(np.float32)


@needs_the_compiler
@pytest.mark.parametrize(("name", "count"), [v for v in VECTORS if v[0] != "float16"])
def test_the_instructions_move_a_vec_and_widen_it(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the intrinsics write for a GPU's compiler, compiled for this CPU. (It does not know
    float16; its bits take the same way as those of bfloat16.)"""
    import numba.cuda.extending

    monkeypatch.setattr(numba.cuda.extending, "intrinsic", extending.intrinsic)
    load, store, widen = vectors.numba_cuda(count)

    @njit
    def move(out, floats, a, i):
        vec = load(a, i)
        store(out, i, vec)
        widen(floats, vec)

    a = numbers(name, 3 * count)
    out, floats = np.zeros_like(a), np.zeros(count, np.float32)
    move(out, floats, a, count)
    middle = slice(count, 2 * count)
    np.testing.assert_array_equal(out[middle], a[middle])
    assert not out[:count].any()
    assert not out[2 * count :].any()
    np.testing.assert_array_equal(floats, as_float32(name, a[middle]))


def test_a_tuple_of_another_length_is_refused() -> None:
    """A compiler would move its first elements only, and say nothing."""
    load_4, *_ = vectors.vector_access(4)
    _, store_2, widen_2 = vectors.vector_access(2)

    @cuda.jit
    def store_less(out, a):
        store_2(out, 0, load_4(a, 0))

    @cuda.jit
    def widen_less(out, a):
        widen_2(out, load_4(a, 0))

    arrays = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for kernel in (store_less, widen_less):
        with pytest.raises(Unsupported, match="moves 2 elements, and its tuple has 4"):
            launch(kernel, 1, 1, *arrays)
