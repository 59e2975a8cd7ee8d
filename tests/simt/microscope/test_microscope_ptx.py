"""Kernels as compiled, in the microscope and in its picture."""

import numpy as np
import pytest
from numba import cuda

pytest.importorskip("matplotlib")

from simt.microscope import microscope
from simt.ptx import run_ptx
from tests.simt.microscope.pictures import require_readable, texts_of
from tests.simt.ptx.small_kernels import run


@cuda.jit
def doubled(out: np.ndarray, a: np.ndarray) -> None:
    out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]


@pytest.mark.needs("numba-cuda")
def test_the_picture_of_a_compiled_kernel_shows_its_ptx() -> None:
    report = run_ptx(doubled, 1, 32, np.zeros(32, np.float32), np.ones(32, np.float32))
    picture = microscope(report, at=report.trace.only(array="a")).picture()
    assert [text for text in texts_of(picture) if text.startswith("ld.global.f32 %f")]
    require_readable(picture)


def test_a_text_is_its_own_source_and_opens_in_the_microscope() -> None:
    report = run("ld.global.u32 %r3, [%rd1]; st.shared.u32 [s], %r3;", np.zeros(1, np.uint32))
    (source,) = report.trace.sources
    assert "ld.global.u32 %r3, [%rd1]; st.shared.u32 [s], %r3" in source.lines.values()
    look = microscope(report)
    assert [array["name"] for array in look.data["arrays"]] == ["argument 0", "s"]
    assert look.data["shared"]["end"] == 256
    assert {place["source"] for place in look.data["places"]} == {0}
    assert look.data["compiled"]
    require_readable(look.picture())
