"""What the compiler made of a kernel: read from PTX and a log, and recorded for its source."""

import json
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

from pa_tutorial.checks import check
from pa_tutorial.kernels.compiled import report
from pa_tutorial.kernels.compiled.report import UNKNOWN, answer, compared, compiled, loads_of
from simt import compiling
from simt.ptx import run_ptx


@cuda.jit(device=True)
def doubled(x):
    return 2 * x


FACTOR = 2


@cuda.jit
def fill(out):
    out[cuda.threadIdx.x] = doubled(cuda.threadIdx.x) * FACTOR


@cuda.jit
def other(out):
    out[cuda.threadIdx.x] = 1


LOADS = """
    ld.global.b16 %rs1, [%rd1];
    ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];
    ld.volatile.shared::cta.v2.b64 {%rd1, %rd2}, [%r1];
    ld.volatile.v2.f32\t{%f1, %f2}, [%rd1];
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {}, [%r1];
    mov.u32 %ld.x, 1;
"""


def test_loads_are_counted_by_space_and_width_and_an_unknown_width_is_not_left_out() -> None:
    places = ("global", 2), ("global", 16), ("shared", 16), ("generic", 8)
    assert loads_of(2 * LOADS) == dict.fromkeys(places, 2)
    with pytest.raises(ValueError, match=r"ld\.global\.e4m3"):
        loads_of("ld.global.e4m3 %r1, [%rd1];")


def test_where_there_is_no_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    for ask in (
        lambda: compiled(fill, None),
        lambda: run_ptx(fill, 1, 4, np.zeros(4, np.int32)),
        lambda: check("cuda_v1", compiled=True),  # before a case fails for it
    ):
        with pytest.raises(ImportError, match="numba-cuda"):
            ask()


def test_the_record_is_shown_for_the_same_kernel_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is kept only while notebooks are recorded. (If there is no compiler, any will do.)"""
    file = tmp_path / "evidence.json"
    empty = json.dumps({"compiler": report.installed(), "answers": {}})
    file.write_text(empty, encoding="utf-8")
    monkeypatch.setattr(report, "FILE", file)
    floats, ints = [np.zeros(1, np.float32)], [np.zeros(1, np.int32)]
    assert answer("other", other, floats, lambda: "said") == "said"
    monkeypatch.setenv(report.RECORDING, "1")
    answer("fill", fill, floats, lambda: [40, "2 x 8"])
    monkeypatch.delenv(report.RECORDING)
    assert answer("fill", fill, floats, lambda: 1 / 0) == [40, "2 x 8"]
    asked = answer("fill", fill, ints, list), answer("fill", fill, floats, list, counts=[1])
    assert asked == ([], []), "for other types, or another run"
    assert "def doubled" in "".join(report.sources(fill))
    monkeypatch.setenv(report.ASKING, "1")
    assert answer("fill", fill, floats, lambda: "again") == "again"
    monkeypatch.delenv(report.ASKING)
    monkeypatch.setattr(report, "installed", lambda: dict.fromkeys(report.COMPILER))
    assert answer("fill", fill, floats, lambda: 1 / 0) == [40, "2 x 8"]
    assert answer("fill", other, floats, lambda: 1 / 0) == UNKNOWN
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert answer("fill", fill, floats, lambda: 1 / 0) == UNKNOWN, "for another constant"
    assert "? " in str(compared({"other": other}, 128, None))
