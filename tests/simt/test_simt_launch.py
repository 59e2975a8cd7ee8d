"""launch: arguments, options, what it refuses; the text that a kernel has, and the package."""

import functools
import linecache
import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from simt import SimtError, Unsupported, cuda, launch
from simt.source import source_of
from tests.simt.helpers import double, floats, imported, item, kernel, plain, zeros

# Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [double, double.py_func])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_and_tensors_are_written_in_place(function, library: str) -> None:
    library = pytest.importorskip(library)
    array = library.arange(100, dtype=library.float32)
    out = array * 0
    assert launch(function, 2, 64, out, array).clean
    np.testing.assert_array_equal(out, array * 2)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arguments_that_share_memory_can_race(library: str) -> None:
    library = pytest.importorskip(library)
    whole = library.arange(65, dtype=library.float32)
    with pytest.raises(SimtError, match="race"):
        launch(double, 1, 64, whole[1:], whole[:64])


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        (double, (zeros(4),), "takes 2 arguments"),
        (double, (zeros(4), "text"), "a is a str"),
        (double, (zeros(4), np.array(["text"])), "a holds <U4"),
        (double, (zeros(4), np.ma.masked_array(zeros(4))), "a is a masked array"),
        (
            double,
            (zeros(4), zeros(4).astype(">f4")),
            "a holds >f4; a kernel computes with integers",
        ),
        (double, (zeros(4), np.zeros(4, np.longdouble)), "in the byte order of this machine"),
        (double, (zeros(4), np.longdouble(1)), "a is a longdouble"),
        (double, (zeros(4), np.datetime64("2026")), "a is a datetime64"),
        (double, (zeros(4), SimpleNamespace(copy_to_host=None)), "a is on the GPU"),
        (SimpleNamespace(), (), "must be a @cuda"),
        (item, (), "kernel is item, a device function"),
    ],
)
def test_what_is_no_kernel_or_no_argument_is_refused(function, args: tuple, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        launch(function, 1, 4, *args)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "bfloat16"}, "a.view(torch.uint16)"),
        ({"dtype": "float8_e4m3fn"}, "a.view(torch.uint8)"),
        ({"device": "meta"}, "on meta"),
        ({"layout": "sparse_coo"}, "a: can't convert Sparse"),
    ],
    ids=str,
)
def test_a_tensor_that_is_no_argument_is_refused(options: dict[str, str], words: str) -> None:
    torch = pytest.importorskip("torch")
    options = {name: getattr(torch, value, value) for name, value in options.items()}
    with pytest.raises(TypeError, match=re.escape(words)):
        launch(double, 1, 4, zeros(4), torch.zeros(4, **options))


@pytest.mark.parametrize(
    ("grid", "block", "options", "words"),
    [
        (0, 32, {}, "grid is 0"),
        (1, 2048, {}, "block is (2048, 1, 1): at most 1024 threads"),
        (1, 32, {"checks": ("races",)}, "'races' is not one of memory, init, race, sync"),
        (1, 32, {"order": "backwards"}, "order is 'backwards'"),
        ((1, 70_000), 1, {}, "at most 65535 along y and z"),
        (2**31, 32, {}, "grid is (2147483648, 1, 1): the simulator runs at most 1,048,576 thread"),
        ((1024, 1025), 32, {"trace": "all"}, "grid is (1024, 1025, 1): the simulator runs at most"),
        (1, 32, {"shared_bytes": -4}, "shared_bytes is -4; it must be between 0 and 232448"),
        (1, 32, {"watch": "no such line"}, "no statement of double is at 'no such line'"),
        (1, 32, {"watch": "end", "names": "typo"}, "has no variable 'typo'"),
        (1, 32, {"unwritten": ("b",)}, "'b' isn't an array argument"),
        (1.5, 32, {}, "grid is 1.5"),
    ],
)
def test_options_that_mean_nothing_are_refused(grid, block, options: dict, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        launch(double, grid, block, floats(4), floats(4), **options)


def test_static_and_dynamic_shared_memory_share_a_limit() -> None:
    """An H100 has 227 KiB for a thread block, 232,448 bytes."""
    static = kernel("out", "s = cuda.shared.array(2, float32)\ns[t] = t\nout[t] = s[t]")
    launch(static, 1, 2, floats(2), shared_bytes=232_448 - 8)
    with pytest.raises(ValueError, match="static shared arrays take 8 bytes; together they may ta"):
        launch(static, 1, 2, floats(2), shared_bytes=232_448 - 7)


def test_a_read_only_argument_is_not_written() -> None:
    out = floats(4)
    out.flags.writeable = False
    with pytest.raises(Unsupported, match="out is read-only"):
        launch(double, 1, 4, out, floats(4))


@cuda.jit("int32(int32, int64)", device=True)
def leading_zeros(n, m):
    return cuda.clz(n) + m / 2


@cuda.jit("void(int32[:], int32)")
def with_a_signature(out, n):
    """n is 2**20 to an int64, in which it has 43 leading zeros."""
    out[0] = cuda.clz(n)
    out[1] = leading_zeros(2**20, 3.7)


def test_a_signature_gives_numbers_their_types() -> None:
    """It needs no GPU, though Numba compiles for a signature at once."""
    out = np.zeros(2, np.int32)
    launch(with_a_signature, 1, 1, out, 2**20)
    assert out.tolist() == [11, 12]
    with pytest.raises(TypeError, match=r"given array\(float32.*its signature allows array\(int32"):
        launch(with_a_signature, 1, 1, floats(2), 2**20)


def test_a_signature_belongs_to_one_kernel_of_a_function() -> None:
    function = kernel("out, n", "out[0] = n").py_func
    typed, lazy = cuda.jit("void(float64[:], float32)")(function), cuda.jit(function)
    out = np.zeros(1)
    launch(typed, 1, 1, out, 0.1)
    assert out[0] == np.float32(0.1)
    launch(lazy, 1, 1, out, 0.1)
    assert out[0] == 0.1
    assert not vars(function), "the function is the user's own"


def test_a_signature_belongs_to_one_device_function_of_a_function() -> None:
    narrow, wide = (
        cuda.jit(f"{kind}({kind})", device=True)(plain) for kind in ("float32", "float64")
    )
    both = kernel("out", "out[0] = narrow(0.1)\nout[1] = wide(0.1)", narrow=narrow, wide=wide)
    out = np.zeros(2)
    launch(both, 1, 1, out)
    assert out.tolist() == [float(np.float32(1.1)), 1.1]


def with_signature(signature: object, body: str, parameters: str = "a") -> Callable:
    return cuda.jit(signature)(kernel(parameters, body).py_func)


@pytest.mark.parametrize(
    ("signature", "array", "found"),
    [
        ("int32[:]", np.arange(3, dtype=np.uint32), [0, 2**32 - 5, 2]),
        ("int32[::1]", np.arange(3, dtype=np.uint32), [0, 2**32 - 5, 2]),
        ("int32[:]", np.arange(3), [0, 2**32 - 5, 2]),  # the low bytes of an int64
        ("int32[:]", np.full(3, -1), [-1, -5, -1]),
        ("int32[:]", np.arange(6, dtype=np.int32)[::2], [0, -5, 4]),
        ("uint8[:]", np.zeros(2, np.bool_), [False, True]),
        ("int32[::1, :]", np.zeros((2, 2), np.int32, order="F"), [[0, 0], [-5, -5]]),
    ],
)
def test_a_single_signature_takes_arrays_whose_bytes_mean_the_same(signature, array, found) -> None:
    """Numba passes any array. The first five are as run_ptx computes them."""
    launch(with_signature(f"void({signature})", "a[1] = -5"), 1, 1, array)
    assert array.tolist() == found


def test_a_signature_takes_a_read_only_array() -> None:
    out, a = zeros(4), floats(4)
    a.flags.writeable = False
    with_types = cuda.jit("void(float32[:], float32[:])")(double.py_func)
    launch(with_types, 1, 4, out, a)
    assert np.array_equal(out, 2 * a)


@pytest.mark.parametrize(
    ("signature", "array"),
    [
        ("int32[:]", floats(4)),
        ("float32[:]", np.zeros(4)),
        ("int32[:]", np.zeros(4, np.int16)),
        ("int32[:]", np.zeros((2, 2), np.int32)),
        ("int32[::1]", np.zeros(4, np.int64)),
        ("int32[::1]", np.zeros(4, np.int32)[::2]),
        ("int32[:, ::1]", np.zeros((2, 2), np.int32, order="F")),
    ],
)
def test_an_array_that_a_signature_would_misread_is_refused(signature, array) -> None:
    with pytest.raises(TypeError, match=r"signature allows .* a GPU would misread their bytes"):
        launch(with_signature(f"void({signature})", "a[0] = 1"), 1, 1, array)


def test_a_list_of_signatures_takes_arrays_of_their_types_only() -> None:
    with pytest.raises(TypeError, match=r"given array\(uint32, 1d, C\); its signature"):
        launch(with_signature(["void(int32[:])"], "a[0] = 1"), 1, 1, np.zeros(4, np.uint32))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("number", [2.7, np.float32(2.7), None])
def test_a_signature_takes_no_float_for_an_integer(number, listed: bool) -> None:
    """Numba passes it through ctypes.c_int32, which raises TypeError."""
    signature = "void(float64[:], int32)"
    whole = with_signature([signature] if listed else signature, "a[0] = n", "a, n")
    with pytest.raises(TypeError, match=r"its signature allows array\(float64, 1d, A\), int32"):
        launch(whole, 1, 1, np.zeros(1), number)


def test_a_loop_variable_has_the_type_of_its_range() -> None:
    out = np.zeros(4, np.int64)
    loop = kernel("out", "for i in range(t, cuda.blockDim.x):\n    out[i] = cuda.clz(i)")
    launch(loop, 1, 4, out, checks=())
    assert out.tolist() == [32, 31, 30, 30]


# What cannot be run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("out[0] = cuda.threadIdx.w", "cuda.threadIdx has x, y and z, not w"),
        ("cuda.no_such_thing()", "does not know cuda.no_such_thing"),
        ("out[0] = plain(a[0])", "plain is a plain Python function"),
        ("out[0] = item(a)", "item takes the arguments a, i"),
        ("out[0] = a.sum()", "does not know a.sum()"),
        ("out[0] = [1, 2][0]", "does not know a list such as [1, 2]"),
        (
            "out[0] = abs([x for x in a])",
            "does not know a list comprehension such as [x for x in a]",
        ),
        ("out[0] = f'{t}'", "does not know an f-string such as f'{t}'"),
        ("cuda.syncthreads", "cuda.syncthreads isn't called: write cuda.syncthreads(...)"),
        ("raise", "does not know raise"),
        ("out[0] = missing", "missing is not defined"),
        ("out[0] = 2**64", "18446744073709551616 needs more than 64 bits"),
        ("s = cuda.shared.array(4, np.longdouble)", "does not know an array of"),
        ("out[0] = mlir.nothing", "numba_cuda_mlir.cuda has no nothing"),
        ("out[0] = a[0] in a", "the simulator knows `in` for tuples"),
        ("out[0] = a[0, 0]", "a has 1 dimensions, the index has 2"),
        ("out[0.5] = 1", "must be an integer"),
        ("out[0] = a", "only a number can be stored"),
        ("out[0] = a + 1", "the array a is not a number"),
        ("out[0] = ~a[0]", "bit operations need integers"),
        ("for x in t: out[0] = x", "anything but range(...), a tuple, an array"),
        ("s = cuda.shared.array(2 * N, float32)", "Numba doesn't take 2 * N"),
        ("s = cuda.shared.array(t, float32)", "does not know t, the shape of an array"),
        ("s = cuda.shared.array(4, plain)", "does not know an array of <function plain"),
        ("s = cuda.shared.array(99999, float32)", "static shared arrays of 399996 bytes"),
        ("s = cuda.shared.array(4, float32, 17)", "an alignment must be a power of 2"),
        ("out[0] = cuda.any_sync(-1, a[0])", "an integer or a truth value, not float32"),
        ("out[0] = cuda.shfl_sync(1.5, t, 0)", "the mask of shfl_sync must be an integer"),
        ("out[0] = cuda.shfl_sync(-1, float16(1), 0)", "not float16"),
        ("out[0] = cuda.popc(a[0])", "needs an integer, not float32"),
        ("cuda.atomic.cas(a, 0, 1, 2)", "atomic.cas works on integers, not float32"),
        ("return a[0]", "a kernel cannot return a value"),
        ("out[0] = round(a[0], a[1])", r"round takes (value)"),
        ("out[0] = cuda.shfl_xor_sync(a[0], 1)", "cuda.shfl_xor_sync takes (lanes, value, d)"),
        ("out[0] = max(a[0])", "max takes (first, second, more)"),
        ("out[0] = a[0] is a[1]", "knows `is` for None, truth values and arrays"),
        ("out[0] = len(t)", "has no len"),
        ("out[0] = cuda.grid(4)[0]", "cuda.grid(4): a grid has 1, 2 or 3 dimensions"),
        ("a[0], out[0] = 1, 2, 3", "needs 2 values"),
        ("out[0] = a[::t][0]", "a slice whose step isn't a constant"),
        ("out[0] = (1, 2.5)[t]", "needs a tuple of one type of numbers"),
        ("out[0] = cuda.ldcg(t, 0)", "t is not an array"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(line: str, words: str) -> None:
    mlir = ModuleType("numba_cuda_mlir.cuda")
    mlir.nothing = None
    names = {"plain": plain, "float16": np.float16, "mlir": mlir}
    refused = kernel("out, a", line, **names)
    with pytest.raises(Unsupported) as caught:
        launch(refused, 1, 1, floats(4), floats(4))
    assert words in str(caught.value)
    assert "line 4, in kernel" in str(caught.value)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("f = g = lambda x: x + t", "`lambda` such as lambda x: x"),
        ("class Inner: pass", "`classdef` in a kernel"),
        ("out[t] = abs(i + t for i in range(3))", "a generator such as"),
    ],
)
def test_code_inside_a_kernel_that_python_compiles_alone_is_named(line, words, tmp_path) -> None:
    text = f"\ndef kernel(out):\n    t = out[0]\n    out[0] = t\n    {line}\n"
    with pytest.raises(Unsupported, match=f"does not know {words}(.|\n)*line 5"):
        launch(imported(tmp_path / "nested.py", text).kernel, 1, 1, floats(1))


# The text of a kernel: which file, which function, which version -------------------------------


def test_a_kernel_without_source_says_so() -> None:
    names: dict[str, object] = {"cuda": cuda}
    exec("def kernel(out): out[0] = 1", names)
    with pytest.raises(Unsupported, match="The source of kernel cannot be read: could not get"):
        launch(names["kernel"], 1, 1, floats(4))


def test_a_file_that_has_changed_since_its_import_is_refused(tmp_path) -> None:
    """Otherwise the text of another kernel would run under this one's name."""
    path = tmp_path / "changed.py"
    first, second = "def one(out):\n    out[0] = 1\n", "def two(out):\n    out[0] = 2\n"
    module = imported(path, first + second)
    path.write_text("def zero(out):\n    out[0] = 0\n" + first + second, encoding="utf-8")
    linecache.checkcache()
    with pytest.raises(Unsupported, match="has changed since it was imported"):
        launch(module.two, 1, 1, floats(1))


def test_a_global_number_that_changes_after_it_was_compiled_in_is_refused(tmp_path) -> None:
    """On a GPU, the kernel would go on with the old one. Other types are compiled anew."""
    module = imported(tmp_path / "numbers.py", "N = 4\ndef kernel(out): out[0] = N\n")
    out, other = floats(1), np.zeros(1, np.int32)
    launch(module.kernel, 1, 1, out)
    module.N = 8
    launch(module.kernel, 1, 1, other)
    with pytest.raises(Unsupported, match="N is 8, and was 4 when kernel was first launched"):
        launch(module.kernel, 1, 1, out)
    assert (out[0], other[0]) == (4, 8)


def test_a_wrapped_function_runs_the_text_of_its_wrapper() -> None:
    @functools.wraps(plain)
    def wrapper(out):
        out[0] = 99

    out = floats(1)
    launch(wrapper, 1, 1, out)
    assert out[0] == 99


MARGIN = """
def make():
    def kernel(out):
# at the margin
        out[0] = (5 +
2)
    return kernel
kernel = make()
"""


def test_a_kernel_may_have_lines_at_the_margin(tmp_path) -> None:
    out = floats(1)
    launch(imported(tmp_path / "text.py", MARGIN).kernel, 1, 1, out)
    assert out[0] == 7


def test_equal_kernels_of_two_files_keep_their_files(tmp_path) -> None:
    for name in ("first", "second"):
        text = f"def kernel(out):\n    out[9] = 1  # {name}\n"
        function = imported(tmp_path / f"{name}.py", text).kernel
        (finding,) = launch(function, 1, 1, floats(1), collect=True).findings
        assert finding.site.code.endswith(f"# {name}")
        assert finding.site.file.endswith(f"{name}.py")


def test_numbas_own_simulator_is_refused_only_where_it_has_taken_over(monkeypatch) -> None:
    """A script that sets the variable itself is too late: Numba has been imported."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert launch(double, 1, 4, floats(4), floats(4)).clean
    command = [sys.executable, "-c", "from simt import simulate; simulate()"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Unset it and start Python again" in done.stderr


# The package and its dependencies ------------------------------------------------------------


def test_it_imports_what_most_launches_do_without_only_when_it_is_needed() -> None:
    script = "import sys, simt; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {"greenlet", "matplotlib", "anywidget", "IPython", "torch", "pytest"} & {*loaded}


def test_a_launch_keeps_nothing_more_of_a_kernel_than_the_first_one() -> None:
    adding = kernel("out", "x: int = 0\nx += t\nout[t] += x")
    launch(adding, 1, 32, zeros(32))
    source = source_of(adding.py_func)
    sites = len(source._sites)
    launch(adding, 1, 32, zeros(32))
    assert len(source._sites) == sites
