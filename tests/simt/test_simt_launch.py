"""launch: arguments, signatures, options, and what it refuses."""

import linecache
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from simt import SimtError, Unsupported, cuda, launch
from tests.simt.helpers import double, floats, imported, kernel, zeros


def plain(x):
    return x + 1


# Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_and_tensors_are_written_in_place_and_can_race(library: str) -> None:
    library = pytest.importorskip(library)
    whole = library.arange(100, dtype=library.float32)
    out = whole * 0
    assert launch(double, 2, 64, out, whole).clean
    np.testing.assert_array_equal(out, whole * 2)
    with pytest.raises(SimtError, match="race"):
        launch(double, 1, 64, whole[1:], whole[:64])


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        (double, (zeros(4),), "takes 2 arguments"),
        (double, (zeros(4), "text"), "a is a str"),
        (double, (zeros(4), np.ma.masked_array(zeros(4))), "a is a masked array"),
        (double, (zeros(4), zeros(4).astype(">f4")), "a holds >f4"),
        (double, (zeros(4), np.longdouble(1)), "a is a longdouble"),
        (double, (zeros(4), SimpleNamespace(copy_to_host=None)), "a is on the GPU"),
        (SimpleNamespace(), (), "must be a @cuda"),
    ],
)
def test_what_is_no_kernel_or_no_argument_is_refused(function, args: tuple, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        launch(function, 1, 4, *args)


@pytest.mark.parametrize(
    ("grid", "block", "options", "words"),
    [
        (0, 32, {}, "grid is 0"),
        ((1, 70_000), 1, {}, "at most 65535"),
        (1, 2048, {}, "at most 1024 threads"),
        (1, 32, {"checks": ("races",)}, "'races'"),
        (1, 32, {"order": "backwards"}, "order is 'backwards'"),
        (1, 32, {"watch": "no such line"}, "watch: .* 'no such line'"),
        (1, 32, {"watch": "end", "names": "typo"}, "names: .* 'typo'"),
        (1, 32, {"unwritten": ("b",)}, "unwritten: 'b'"),
    ],
)
def test_options_that_mean_nothing_are_refused(grid, block, options: dict, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        launch(double, grid, block, floats(4), floats(4), **options)


def test_static_and_dynamic_shared_memory_share_a_limit() -> None:
    """An H100 has 227 KiB for a thread block, 232,448 bytes."""
    static = kernel("out", "s = cuda.shared.array(2, float32)\ns[t] = t\nout[t] = s[t]")
    launch(static, 1, 2, floats(2), shared_bytes=232_448 - 8)
    with pytest.raises(ValueError, match="static shared arrays take 8 bytes"):
        launch(static, 1, 2, floats(2), shared_bytes=232_448 - 7)


@pytest.mark.parametrize("made", [double, cuda.jit("void(f4[:], f4[:])")(double.py_func)])
def test_a_read_only_argument_is_read_and_not_written(made: Callable) -> None:
    out, a = zeros(4), floats(4)
    a.flags.writeable = False
    launch(made, 1, 4, out, a)
    assert np.array_equal(out, 2 * a)
    with pytest.raises(Unsupported, match="out is read-only"):
        launch(made, 1, 4, a, out)


def test_a_signature_belongs_to_one_kernel_or_device_function_of_a_function() -> None:
    function = kernel("out, n", "out[0] = n").py_func
    typed, lazy = cuda.jit("void(float64[:], float32)")(function), cuda.jit(function)
    narrow, wide = (
        cuda.jit(f"{kind}({kind})", device=True)(plain) for kind in ("float32", "float64")
    )
    calls = kernel("out, n", "out[0] = narrow(n) + 4 * wide(n)", narrow=narrow, wide=wide)
    out, single = np.zeros(1), float(np.float32(0.1))
    for made, number in ((typed, single), (lazy, 0.1), (calls, float(np.float32(1.1)) + 4.4)):
        launch(made, 1, 1, out, 0.1)
        assert out[0] == number


@pytest.mark.parametrize(
    ("signature", "array", "found"),
    [
        ("int32[::1]", np.arange(3, dtype=np.uint32), [0, 2**32 - 5, 2]),
        ("int32[:]", np.arange(3), [0, 2**32 - 5, 2]),  # the low bytes of an int64
        ("int32[:]", np.arange(6, dtype=np.int32)[::2], [0, -5, 4]),
        ("uint8[:]", np.zeros(2, np.bool_), [False, True]),
        ("int32[::1, :]", np.zeros((2, 2), np.int32, order="F"), [[0, 0], [-5, -5]]),
        ("int32[:]", floats(4), "misread"),
        ("int32[:]", np.zeros(4, np.int16), "misread"),
        ("int32[::1]", np.zeros(4, np.int32)[::2], "misread"),
    ],
)
def test_a_signature_takes_arrays_whose_bytes_mean_the_same(signature, array, found) -> None:
    """Numba passes any array. The first three are as run_ptx computes them."""
    made = cuda.jit(f"void({signature}, int32)")(kernel("a, n", "a[1] = n").py_func)
    if found == "misread":
        with pytest.raises(TypeError, match=found):
            launch(made, 1, 1, array, -5)
    else:
        launch(made, 1, 1, array, -5)
        assert array.tolist() == found


def test_a_list_of_signatures_takes_values_of_their_types_only() -> None:
    """Numba passes a number through ctypes.c_int32, which raises TypeError."""
    made = cuda.jit(["void(int32[:], int32)"])(kernel("a, n", "a[0] = n").py_func)
    for array, number in ((np.zeros(4, np.uint32), 1), (np.zeros(4, np.int32), 2.7)):
        with pytest.raises(TypeError, match="its signature"):
            launch(made, 1, 1, array, number)


# What cannot be run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("out[0] = plain(a[0])", "plain is a plain Python function"),
        ("f = g = lambda x: x + t", "`lambda`"),
        ("out[0] = 2**64", "more than 64 bits"),
        ("out[0] = a[0] in a", "`in`"),
        ("s = cuda.shared.array(2 * N, float32)", "Numba doesn't take 2 * N"),
        ("s = cuda.shared.array(99999, float32)", "399996 bytes"),
        ("out[0] = cuda.any_sync(-1, a[0])", "an integer or a truth value, not"),
        ("out[0] = cuda.shfl_sync(1.5, t, 0)", "the mask of shfl_sync must be an integer, not"),
        ("out[0] = cuda.shfl_sync(-1, float16(1), 0)", "not float16"),
        ("out[0] = cuda.popc(a[0])", "an integer, not float32"),
        ("cuda.atomic.cas(a, 0, 1, 2)", "integers, not float32"),
        ("out[0] = a[::t][0]", "a slice whose step"),
        ("out[0] = (1, 2.5)[t]", "a tuple of one type"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(line: str, words: str) -> None:
    refused = kernel("out, a", line, plain=plain, float16=np.float16)
    with pytest.raises(Unsupported) as caught:
        launch(refused, 1, 1, floats(4), floats(4))
    for part in (words, "line 4, in kernel", line):
        assert part in str(caught.value)


def test_a_file_that_has_changed_since_its_import_is_refused(tmp_path) -> None:
    """Otherwise the text of another kernel would run under this one's name."""
    path = tmp_path / "changed.py"
    first, second = "def one(out):\n    out[0] = 1\n", "def two(out):\n    out[0] = 2\n"
    module = imported(path, first + second)
    path.write_text("def zero(out):\n    out[0] = 0\n" + first + second, encoding="utf-8")
    linecache.checkcache()
    with pytest.raises(Unsupported, match="has changed since it was imported"):
        launch(module.two, 1, 1, floats(1))


def test_numbas_own_simulator_is_refused_only_where_it_has_taken_over(monkeypatch) -> None:
    """A script that sets the variable itself is too late: Numba has been imported. And what most
    launches do without isn't imported."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert launch(double, 1, 4, floats(4), floats(4)).clean
    script = "import sys, simt; print(*sys.modules); simt.simulate()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Unset it and start Python again" in done.stderr
    unneeded = {"greenlet", "matplotlib", "anywidget", "IPython", "torch", "pytest"}
    assert "simt" in done.stdout.split()
    assert not unneeded & {*done.stdout.split()}
