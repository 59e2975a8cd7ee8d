"""Lines of source beside the instructions that a compiler made of them."""

import linecache
import re
from pathlib import Path

import numpy as np
import pytest

from simt.ptx import PtxFault, ptx_by_line, run_ptx
from tests.simt.ptx.small_kernels import text_of

OF_PYTHON = """from numba import cuda, float32
@cuda.jit(device=True)
def squared(x):
    return x * x
@cuda.jit
def kernel(out, a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = squared(a[t])
    cuda.syncthreads()
    out[t] = s[63 - t]
"""


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["./x.py", "/é.py", "<ipython-input-1-ab>"])
def test_reports_and_faults_name_lines_of_the_file_as_python_names_it(
    name: str, monkeypatch
) -> None:
    lines = OF_PYTHON.splitlines(True)
    monkeypatch.setitem(linecache.cache, name, (len(OF_PYTHON), None, lines, name))
    there: dict = {}
    exec(compile(OF_PYTHON, name, "exec"), there)
    out, a = np.zeros((2, 64), np.float32)
    report = run_ptx(there["kernel"], 1, 64, out, a)
    texts = {number: " ".join(each) for number, each in ptx_by_line(report.kernel, name).items()}
    for opcode, line in (("ld.global", 9), ("mul.f", 4), ("ld.shared", 11), ("st.global", 11)):
        assert [number for number, text in texts.items() if opcode in text] == [line]
    assert ptx_by_line(report.kernel, "another file") == {}
    assert [source.name for source in report.trace.sources] == ["kernel", "squared"]
    assert report.trace.only(9, array="a").num_instructions == 2
    (shared,) = (array for array in report.trace.arrays if array.space == "shared")
    assert shared.shape == (256,)
    with pytest.raises(
        PtxFault, match=rf"past the end of a[\s\S]*from line 9 of {re.escape(name)}"
    ):
        run_ptx(there["kernel"], 1, 64, out, a[:32])
    with pytest.raises(TypeError, match="a is a list"):
        run_ptx(there["kernel"], 1, 64, out, [2])


C_SOURCE = 'extern "C" __global__ void twice(float* a) {\n  a[threadIdx.x] *= 2;\n}\n'
INLINED = ".loc 2 {} 3, function_name $L__info_string0, inlined_at 1 2 3\n"


def test_a_report_names_lines_of_c_and_the_caller_of_an_inlined_function(tmp_path: Path) -> None:
    source = tmp_path / "twice.cu"
    source.write_text(C_SOURCE, encoding="utf-8")
    files = f'.file 1 "{source}"\n.file 2 "intrinsics.hpp"\n'
    body = ".loc 1 2 3\nld.global.f32 %f1, [%rd1];\nadd.f32 %f1, %f1, %f1;\n"
    text = text_of(f"{body}{INLINED.format(440)}st.global.f32 [%rd1], %f1;")
    text = text.replace(".visible", f"{files}.visible")
    array = np.ones(4, np.float32)
    report = run_ptx(text, 1, 4, array)
    assert array.tolist() == [2] * 4
    assert {site.code for site in report.trace.sites if site.line == 2} == {"a[threadIdx.x] *= 2;"}
    assert str(report).startswith("kernel: 1 thread block of 4 threads; checked memory, init")
    wrong, inside = text.replace("[%rd1], %f1", "[%rd1+8], %f1"), r"from line 440 of intrinsics.hpp"
    called = r"\s+called in line 2 of .*:  a\[threadIdx.x\] \*= 2;"
    with pytest.raises(PtxFault, match=inside + called):
        run_ptx(wrong, 1, 4, array)
    with pytest.raises(PtxFault, match="%f1" + called):  # line 0: of the caller, more isn't known
        run_ptx(wrong.replace(".loc 2 440", ".loc 2 0"), 1, 4, array)
