"""Intrinsics: Numba compiles them, their twins run here; vectors of several items."""

import numpy as np
import pytest

from simt import SimtError, launch, twin
from tests.simt.helpers import kernel, zeros
from tests.simt.kernels.traffic import load2

ITEMS = np.arange(65, dtype=np.float32)
PAIRS = "x, y = load2(a, first + 2 * t)\nif t < out.size: out[t] = x + y"
sum_of_pairs = kernel("out, a, first", PAIRS, load2=load2)


def test_an_aligned_vector_may_begin_at_any_item_of_a_shared_array() -> None:
    out = zeros(2)
    lines = """
        before = cuda.shared.array(1, float32)
        s = cuda.shared.array(8, float32)  # 4 bytes past a multiple of 8
        for i in range(8):
            s[i] = before.size * i
        out[0], out[1] = load2(s, 1)
        """
    assert launch(kernel("out", lines, load2=load2), 1, 1, out).clean
    assert out.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("a", "first", "thread", "words"),
    [
        # The second row starts at an odd item.
        (np.append(ITEMS, ITEMS), 1, 0, "misaligned: 4 bytes past a multiple of 8"),
        (ITEMS[:63], 0, 31, r"reads a\[63\], out of"),
        (ITEMS[1:], 0, 0, "misaligned"),
    ],
)
def test_a_vector_that_is_crooked_or_ends_outside_is_a_finding(a, first, thread, words) -> None:
    with pytest.raises(SimtError, match=words) as caught:
        launch(sum_of_pairs, 1, 32, zeros(32), a, first)
    finding = caught.value.finding
    assert (finding.check, finding.thread, finding.array) == ("memory", thread, "a")


def test_every_item_of_a_vector_is_checked_for_races() -> None:
    whole = ITEMS.copy()
    with pytest.raises(SimtError, match="race"):
        launch(sum_of_pairs, 1, 32, whole[3::2], whole, 0)  # thread t writes what t + 1 reads


def swap2(array, index):
    raise NotImplementedError  # only its twin is used


@twin(swap2)
def _(access, array, index):
    x, y = access.load(array, index, 2)
    access.store(array, index, (y, x))


def test_a_store_of_a_vector_can_race() -> None:
    a = ITEMS[:64].copy()
    launch(kernel("a", "swap2(a, 2 * t)", swap2=swap2), 1, 32, a)
    np.testing.assert_array_equal(a, ITEMS[:64].reshape(-1, 2)[:, ::-1].ravel())
    with pytest.raises(SimtError, match="race"):
        launch(kernel("a", "swap2(a, 2 * (t // 2))", swap2=swap2), 1, 32, a)
