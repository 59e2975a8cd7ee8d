"""Lines of source beside the instructions that Numba made of them."""

import linecache
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from simt import compile_ptx
from simt.ptx import PtxFault, parse, ptx_by_line, run_ptx
from tests.simt.ptx.small_kernels import text_of

NEEDS_NUMBA = pytest.mark.needs("numba-cuda")


@cuda.jit(device=True)
def squared(x: float) -> float:
    return x * x


@cuda.jit
def sum_of_squares(out: np.ndarray, a: np.ndarray) -> None:
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = squared(a[t])
    cuda.syncthreads()
    total = 0.0
    for i in range(t, out.size):
        total += s[i]
    out[t] = total


FILE = __file__
A = np.arange(64, dtype=np.float32)


def line_of(text: str) -> int:
    with open(FILE, encoding="utf-8") as file:
        return 1 + next(number for number, line in enumerate(file) if line.strip() == text)


@NEEDS_NUMBA
def test_a_line_has_the_instructions_that_were_made_of_it() -> None:
    kernel = parse(compile_ptx(sum_of_squares, np.zeros_like(A), A, lineinfo=True))
    texts = {number: " ".join(each) for number, each in ptx_by_line(kernel, FILE).items()}
    for opcode, line in (
        ("ld.global", "s[t] = squared(a[t])"),
        ("mul.f", "return x * x"),
        ("ld.shared", "total += s[i]"),
        ("st.global", "out[t] = total"),
    ):
        assert [n for n, text in texts.items() if opcode in text] == [line_of(line)]
    assert ptx_by_line(kernel, "another file") == {}


@NEEDS_NUMBA
def test_a_fault_and_a_trace_name_the_line_of_python() -> None:
    load = line_of("s[t] = squared(a[t])")
    with pytest.raises(PtxFault, match=rf"past the end of a[\s\S]*from line {load} of {FILE}"):
        run_ptx(sum_of_squares, 1, 64, np.zeros_like(A), A[:32])
    report = run_ptx(sum_of_squares, 1, 64, np.zeros_like(A), A)
    assert [source.name for source in report.trace.sources] == ["sum_of_squares", "squared"]
    assert report.trace.only(load, array="a").num_instructions == 2
    (shared,) = (array for array in report.trace.arrays if array.space == "shared")
    assert shared.shape == (256,)


@NEEDS_NUMBA
def test_an_argument_that_no_kernel_takes_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="a is a list"):
        run_ptx(sum_of_squares, 1, 64, np.zeros_like(A), [2])


SQUARED = """from numba import cuda
@cuda.jit(device=True)
def squared(x):
    return x * x
@cuda.jit
def kernel(out, a):
    out[0] = squared(a[0])
"""


@NEEDS_NUMBA
@pytest.mark.parametrize("name", ["./x.py", "/é.py", "<ipython-input-1-ab>"])
def test_lines_belong_to_the_file_as_python_names_it(name: str, monkeypatch) -> None:
    monkeypatch.setitem(linecache.cache, name, (len(SQUARED), None, SQUARED.splitlines(True), name))
    there: dict = {}
    exec(compile(SQUARED, name, "exec"), there)
    report = run_ptx(there["kernel"], 1, 1, np.zeros_like(A), A)
    assert set(ptx_by_line(report.kernel, name)) >= {4, 7}
    assert [source.name for source in report.trace.sources] == ["kernel", "squared"]


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
