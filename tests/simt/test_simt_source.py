"""The text of a kernel: which file, which function, which version."""

import functools
import linecache
import sys
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32
from simt_helpers import N, floats, imported, neighbour, plain

from pa_tutorial.simt import SimtError, Unsupported, launch


def test_a_kernel_without_source_says_so() -> None:
    names: dict[str, object] = {"cuda": cuda}
    exec("def kernel(out): out[0] = 1", names)
    with pytest.raises(Unsupported, match="The source of kernel cannot be read"):
        launch(names["kernel"], 1, 1, floats(4))


def test_a_file_that_has_changed_since_its_import_is_refused(tmp_path) -> None:
    """Otherwise the text of another kernel would run under this one's name."""
    path = tmp_path / "changed.py"
    first, second = "def one(out):\n    out[0] = 1\n", "def two(out):\n    out[0] = 2\n"
    path.write_text(first + second, encoding="utf-8")
    module = imported(path)
    path.write_text("def zero(out):\n    out[0] = 0\n" + first + second, encoding="utf-8")
    linecache.checkcache()
    with pytest.raises(Unsupported, match="has changed since it was imported"):
        launch(module.two, 1, 1, floats(1))


def test_a_wrapped_function_runs_the_text_of_its_wrapper() -> None:
    @functools.wraps(plain)
    def kernel(out):
        out[0] = 99

    out = floats(1)
    launch(kernel, 1, 1, out)
    assert out[0] == 99


def test_a_kernel_in_a_function_may_have_lines_at_the_left_margin(tmp_path) -> None:
    path = tmp_path / "margin.py"
    path.write_text(
        "def make():\n    def kernel(out):\n# at the margin\n        out[0] = (1 +\n2)\n"
        "    return kernel\n",
        encoding="utf-8",
    )
    out = floats(1)
    launch(imported(path).make(), 1, 1, out)
    assert out[0] == 3


def test_a_function_that_calls_itself_and_its_own_name_are_known(tmp_path) -> None:
    path = tmp_path / "recursion.py"
    path.write_text(
        "from numba import cuda\n@cuda.jit(device=True)\ndef down(n):\n"
        "    if n > 0:\n        return down(n - 1)\n    return 7\n"
        "@cuda.jit\ndef kernel(out):\n    out[0] = down(3)\n",
        encoding="utf-8",
    )
    out = floats(1)
    launch(imported(path).kernel, 1, 1, out)
    assert out[0] == 7


def test_equal_kernels_of_two_files_keep_their_files(tmp_path) -> None:
    kernels = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.py"
        path.write_text(f"def kernel(out):\n    out[9] = 1  # {name}\n", encoding="utf-8")
        kernels.append(imported(path).kernel)
    for name, kernel in zip(("first", "second"), kernels, strict=True):
        (finding,) = launch(kernel, 1, 1, floats(1), collect=True).findings
        assert finding.site.code.endswith(f"# {name}")
        assert finding.site.file.endswith(f"{name}.py")


@pytest.fixture
def other_cuda(monkeypatch) -> ModuleType:
    """In the place of numba_cuda_mlir, which has the same names, as objects of its own."""
    successor = ModuleType("numba_cuda_mlir.cuda")
    for name in ("threadIdx", "syncthreads", "atomic", "shared", "shfl_xor_sync"):
        setattr(successor, name, SimpleNamespace())
    successor.shared.array, successor.atomic.add = object(), object()
    monkeypatch.setitem(sys.modules, successor.__name__, successor)
    return successor


def test_the_successor_of_numba_cuda_is_understood(other_cuda) -> None:
    names = {"cuda": other_cuda, "N": N, "float32": float32}
    dispatcher = SimpleNamespace(py_func=FunctionType(neighbour.py_func.__code__, names))
    with pytest.raises(SimtError, match="race"):
        launch(dispatcher, 1, N, floats(N), floats(N))


def test_a_shuffle_that_is_a_device_function_is_known_by_its_name(other_cuda) -> None:
    """Numba without numba-cuda, as on every Mac, has written its shuffles and votes in Python."""
    other_cuda.shfl_xor_sync.py_func = plain

    def kernel(out):
        out[cuda.threadIdx.x] = cuda.shfl_xor_sync(-1, out[cuda.threadIdx.x], 1)

    out = floats(32)
    expected = out.reshape(16, 2)[:, ::-1].ravel()
    launch(FunctionType(kernel.__code__, {"cuda": other_cuda}), 1, 32, out)
    np.testing.assert_array_equal(out, expected)
