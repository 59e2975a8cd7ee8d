"""Intrinsics: Numba compiles them, their twins run here."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numba import cuda, float32

from pa_tutorial.simt import SimtError, launch, ptx, twin

pytestmark = pytest.mark.needs("numba-cuda")

if find_spec("numba_cuda") is not None:
    from numba.cuda.extending import intrinsic
    from simt_kernels.vectors import vector_load

    load2 = vector_load(2)

    @cuda.jit
    def sum_of_pairs(out, a, first):
        t = cuda.threadIdx.x
        x, y = load2(a, first + 2 * t)
        if t < out.size:
            out[t] = x + float32(10) * y


def test_the_compiler_makes_one_load_of_it() -> None:
    text = ptx(sum_of_pairs, np.zeros(4, np.float32), np.zeros(8, np.float32), 0)
    assert re.search(r"ld(\.global)?(\.nc)?\.v2\.f32", text)


def test_the_twin_loads_a_vector() -> None:
    a, out = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    for order in ("together", "forward"):
        assert launch(sum_of_pairs, 1, 32, out, a, 0, order=order).clean
        np.testing.assert_array_equal(out, a[::2] + 10 * a[1::2])


def test_a_misaligned_vector_is_a_finding() -> None:
    a, out = np.arange(65, dtype=np.float32), np.zeros(32, np.float32)
    with pytest.raises(SimtError) as caught:
        launch(sum_of_pairs, 1, 32, out, a, 1)
    finding = caught.value.finding
    assert (finding.check, finding.thread, finding.array) == ("memory", 0, "a")
    assert "asks for 8 bytes of a, 4 bytes past a multiple of 8" in str(finding)


def test_a_vector_that_ends_outside_is_a_finding() -> None:
    a, out = np.arange(63, dtype=np.float32), np.zeros(32, np.float32)
    with pytest.raises(SimtError) as caught:
        launch(sum_of_pairs, 1, 32, out, a, 0)
    assert (caught.value.finding.check, caught.value.finding.thread) == ("memory", 31)


def test_a_vector_of_a_view_is_aligned_by_its_address() -> None:
    """A row that starts at an odd item: the index is even, the address is not."""
    whole, out = np.arange(65, dtype=np.float32), np.zeros(32, np.float32)
    for view in (whole[1:], torch.from_numpy(whole)[1:], torch.arange(65.0)[1:]):
        with pytest.raises(SimtError, match="misaligned"):
            launch(sum_of_pairs, 1, 32, out, view, 0)


def test_every_item_of_a_vector_is_checked_for_races() -> None:
    whole = np.arange(64, dtype=np.float32)
    with pytest.raises(SimtError, match="race"):
        launch(sum_of_pairs, 1, 32, whole[3::2], whole, 0)  # thread t writes what t + 1 reads


def test_stores_of_vectors_are_noted() -> None:
    @intrinsic
    def swap2(typingctx, array, index):
        raise NotImplementedError  # only its twin is used

    @twin(swap2)
    def _swap2(access, array, index):
        x, y = access.load(array, index, 2)
        access.store(array, index, (y, x))

    @cuda.jit
    def kernel(a):
        swap2(a, 2 * (cuda.threadIdx.x // 2))

    @cuda.jit
    def alone(a):
        swap2(a, 2 * cuda.threadIdx.x)

    a = np.arange(64, dtype=np.float32)
    launch(alone, 1, 32, a)
    np.testing.assert_array_equal(a, np.arange(64).reshape(-1, 2)[:, ::-1].ravel())
    with pytest.raises(SimtError, match="race"):
        launch(kernel, 1, 32, a)
