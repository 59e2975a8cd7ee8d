"""launch: arguments, options, what it refuses; and what a reader meets first."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import cuda, float32, from_dtype
from simt_helpers import N, double, floats, plain

from pa_tutorial.simt import CHECKS, SimtError, Unsupported, launch

# Arguments -----------------------------------------------------------------------------------


def test_a_kernel_runs_as_dispatcher_and_as_plain_function() -> None:
    for kernel in (double, double.py_func):
        out, a = floats(100), floats(100)
        assert launch(kernel, 2, 64, out, a).clean
        np.testing.assert_array_equal(out, a * 2)


def test_torch_tensors_are_written_in_place() -> None:
    out, a = torch.zeros(100), torch.arange(100.0)
    launch(double, 2, 64, out, a)
    assert torch.equal(out, a * 2)


def test_tensors_of_one_storage_are_one_memory() -> None:
    whole = torch.arange(65.0)
    with pytest.raises(SimtError) as caught:
        launch(double, 1, 64, whole[1:], whole[:64])
    assert caught.value.finding.check == "race"


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((np.zeros(4),), TypeError, "takes 2 arguments"),
        ((np.zeros(4), "text"), TypeError, "a is a str"),
        ((np.zeros(4), np.array(["text"])), TypeError, "a holds <U4"),
        ((np.zeros(4), torch.zeros(4).bfloat16()), TypeError, "a.view(torch.uint16)"),
        ((np.zeros(4), torch.zeros(4, device="meta")), TypeError, "on meta"),
    ],
)
def test_arguments_that_no_kernel_takes_are_named(args: tuple, error: type, words: str) -> None:
    with pytest.raises(error) as caught:
        launch(double, 1, 4, *args)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "block", "options", "words"),
    [
        (0, 32, {}, "grid is 0"),
        (1, (32, 0), {}, "block is (32, 0)"),
        (1, 2048, {}, "block is (2048, 1, 1): at most 1024 threads"),
        (1, 32, {"checks": ("races",)}, "'races' is not one of memory, init, race, sync"),
        (1, 32, {"order": "backwards"}, "order is 'backwards'"),
        (1, (1, 1, 128), {}, "64 along z"),
        ((1, 70_000), 1, {}, "at most 65535 along y and z"),
        (1, 32, {"shared_bytes": -4}, "shared_bytes is -4; it must be between 0 and 232448"),
        (1, 32, {"shared_bytes": 300_000}, "shared_bytes is 300000"),
        (1, 32, {"checks": "races"}, "'races' is not one of memory"),
        (1, 32, {"watch": "no such line"}, "no statement of double is at 'no such line'"),
        (1, 32, {"unwritten": ("b",)}, "'b' is no array argument"),
    ],
)
def test_options_that_mean_nothing_are_refused(grid, block, options: dict, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        launch(double, grid, block, floats(4), floats(4), **options)
    assert words in str(caught.value)


def test_a_grid_of_floats_is_refused() -> None:
    with pytest.raises(TypeError, match=r"grid is 1\.5"):
        launch(double, 1.5, 32, floats(4), floats(4))


def test_a_read_only_argument_is_not_written() -> None:
    out = floats(4)
    out.flags.writeable = False
    with pytest.raises(Unsupported, match="out is read-only"):
        launch(double, 1, 4, out, floats(4))


def test_what_was_never_written_may_not_be_read() -> None:
    with pytest.raises(SimtError) as caught:
        launch(double, 1, 4, np.zeros(4, np.float32), np.empty(4, np.float32), unwritten=["a"])
    assert caught.value.finding.check == "init"
    assert caught.value.finding.array == "a"


# What cannot be run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("out[0] = cuda.threadIdx.w", "cuda.threadIdx has x, y and z, not w"),
        ("cuda.nanosleep(5)", "the simulator does not know cuda.nanosleep"),
        ("cuda.no_such_thing()", "does not know cuda.no_such_thing"),
        ("out[0] = cuda.fp16.hadd(a[0], a[0])", "does not know cuda.fp16"),
        ("cuda.cg.this_grid()", "does not know cuda.cg.this_grid"),
        ("out[0] = np.exp(a[0])", "does not know np.exp"),
        ("out[0] = plain(a[0])", "plain is a plain Python function"),
        ("out[0] = a.sum()", "does not know a.sum()"),
        ("out[0] = [1, 2][0]", "does not know [1, 2], a List"),
        ("out[0] = missing", "missing is not defined"),
        ("assert a[0] > 0", "does not know Assert"),
        ("out[0] = a[0, 0]", "a has 1 dimensions, the index has 2"),
        ("out[0.5] = 1", "must be an integer"),
        ("out[0] = a", "only a number can be stored"),
        ("out[0] = a + 1", "the array a is not a number"),
        ("out[0] = ~a[0]", "bit operations need integers"),
        ("for x in a: out[0] = x", "anything but range(...) or a tuple"),
        ("s = cuda.shared.array(2 * N, float32)", "Numba does not take 2 * N"),
        ("s = cuda.shared.array(t, float32)", "does not know t, the shape of an array"),
        ("s = cuda.shared.array(4, record)", "does not know an array of Record"),
        ("out[0] = cuda.all_sync(1.5, t)", "the mask of a vote must be an integer, not float64"),
        ("out[0] = cuda.any_sync(-1, a[0])", "an integer or a truth value, not float32"),
        ("out[0] = cuda.shfl_sync(1.5, t, 0)", "the mask of shfl_sync must be an integer"),
        ("out[0] = cuda.shfl_sync(-1, float16(1), 0)", "not float16"),
        ("return a[0]", "a kernel cannot return a value"),
        ("out[0] = min(*a)", "does not know *a, a Starred"),
        ("x: int = 1", "does not know AnnAssign"),
        ("out[0] = round(a[0], 1)", "round(a[0], 1): not with 2 arguments"),
        ("out[0] = a[0] is None", "does not know a[0] is None"),
        ("out[0] = a[a[0]]", "must be an integer, not float32"),
        ("out[0] = len(t)", "has no len"),
        ("out[0] = (1, 2, 3)[a[0]]", "must be an integer, not float32"),
        ("out[0] = cuda.grid(4)[0]", "cuda.grid(4): a grid has 1, 2 or 3 dimensions"),
        ("out[0] = cuda.grid(t)", "the kernel itself says how many"),
        ("s = cuda.shared.array(4, 'float3')", "does not know an array of float3"),
        ("s = cuda.shared.array(1.5, float32)", "the shape of an array is whole numbers"),
        ("for i in range(2.5): out[0] = i", "range needs integers, not float64"),
        ("a[0], out[0] = 1, 2, 3", "needs 2 values"),
        ("out[0] = a[::2][0]", "does not know a slice with a step"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(line: str, words: str, tmp_path) -> None:
    names = {"cuda": cuda, "np": np, "plain": plain, "N": N, "float32": float32}
    names |= {"float16": np.float16, "record": from_dtype(np.dtype([("x", "f4"), ("y", "i4")]))}
    path = tmp_path / "kernel.py"
    path.write_text(
        f"def kernel(out, a):\n    t = cuda.threadIdx.x\n    {line}\n", encoding="utf-8"
    )
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    with pytest.raises(Unsupported) as caught:
        launch(names["kernel"], 1, 1, floats(4), floats(4))
    assert words in str(caught.value)
    assert "line 3, in kernel" in str(caught.value)
    assert line in str(caught.value)


def test_division_of_an_integer_by_zero_names_the_thread() -> None:
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = 12 // (3 - t)

    with pytest.raises(ZeroDivisionError, match="thread 3 of thread block 0 divides"):
        launch(kernel, 1, 4, floats(4))


def test_a_loop_without_end_is_an_error() -> None:
    @cuda.jit
    def kernel(out):
        while out[0] == 0:
            pass

    with pytest.raises(RuntimeError, match="1000 turns of loops in one thread block and no end"):
        launch(kernel, 1, 32, np.zeros(1), max_turns=1000)


# The package and its dependency --------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
from numba import cuda
from pa_tutorial.simt import launch
import kernel_in_a_file as k
assert "greenlet" not in sys.modules, "imported too early"
launch(k.kernel, 1, 64, np.zeros(64), order="together")
assert "greenlet" not in sys.modules, "not needed for one gang"
launch(k.kernel, 1, 64, np.zeros(64), order="forward")
assert "greenlet" in sys.modules
"""


def test_greenlet_is_imported_when_warps_first_take_turns(tmp_path) -> None:
    kernel = "from numba import cuda\ndef kernel(out):\n    out[cuda.threadIdx.x] = 1\n"
    (tmp_path / "kernel_in_a_file.py").write_text(kernel, encoding="utf-8")
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True)


def test_the_simulator_knows_nothing_of_attention() -> None:
    names = "import sys, pa_tutorial.simt; print([m for m in sys.modules if m[:2] == 'pa'])"
    run = subprocess.run(
        [sys.executable, "-c", names], capture_output=True, encoding="utf-8", check=True
    )
    modules = {m for m in eval(run.stdout) if m.startswith("pa_tutorial.")}
    other_modules = {m for m in modules if not m.startswith("pa_tutorial.simt")}
    assert other_modules == {"pa_tutorial.private_names"}
    assert modules - other_modules


def test_an_item_divided_in_place_by_zero_is_an_error() -> None:
    @cuda.jit
    def kernel(a, b):
        a[cuda.threadIdx.x] //= b[cuda.threadIdx.x]

    with pytest.raises(ZeroDivisionError, match="thread 1 of thread block 1"):
        launch(kernel, 2, 2, np.ones(2, np.int64), np.array([1, 0]), order="reverse")


@cuda.jit(device=True)
def half(x):
    return x / 2


@pytest.mark.parametrize(
    ("kernel", "words"),
    [(SimpleNamespace(), "must be a @cuda"), (half, "kernel is half, a device function")],
)
def test_what_is_no_kernel_is_refused_by_name(kernel: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        launch(kernel, 1, 1)


@cuda.jit("int32(int32, int64)", device=True)
def zeros(n, m):
    return cuda.clz(n) + m / 2


@cuda.jit("void(int32[:], int32)")
def with_a_signature(out, n):
    """n is 2**20 to an int64, in which it has 43 leading zeros."""
    out[0] = cuda.clz(n)
    out[1] = zeros(2**20, 3.7)


def test_a_signature_gives_numbers_their_types() -> None:
    """It needs no GPU, though Numba compiles for a signature at once."""
    out = np.zeros(2, np.int32)
    launch(with_a_signature, 1, 1, out, 2**20)
    assert out.tolist() == [11, 12]
    with pytest.raises(TypeError, match=r"given array\(float32.*its signature allows array\(int32"):
        launch(with_a_signature, 1, 1, floats(2), 2**20)


def test_each_thread_prints_once_in_the_form_of_numba(capsys) -> None:
    @cuda.jit
    def kernel(out):
        t = cuda.grid(1)
        if t % 32 < 2:
            print("thread", t, out[t], t > 1, (t,))

    launch(kernel, 3, 32, np.arange(96, dtype=np.float32) / 4, trace=0)
    printed = [f"thread {t} {t / 4:f} {t > 1} ({t},)" for t in (0, 1, 32, 33, 64, 65)]
    assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.parametrize("checks", [(), CHECKS])
def test_a_negative_constant_counts_from_the_end_of_its_axis(checks: tuple[str, ...]) -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x, -2]

    out, a = np.zeros(3), np.arange(24.0).reshape(4, 6)
    launch(kernel, 1, 3, out, a[1:, :4], checks=checks)
    np.testing.assert_array_equal(out, a[1:, 2])
    if checks:
        with pytest.raises(SimtError, match=r"asks for a\[0, -2\]; the shape is \(4, 1\)"):
            launch(kernel, 1, 3, out, a[:, :1])


def test_where_nobody_checks_a_negative_index_stays_in_its_axis() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[1, t - 1]

    out, a = np.zeros(4), np.arange(8.0).reshape(2, 4)
    launch(kernel, 1, 4, out, a, checks=())
    np.testing.assert_array_equal(out, np.roll(a[1], 1))


@pytest.mark.parametrize("shift", [-9, 9])
def test_where_nobody_checks_an_index_outside_of_memory_is_an_error(shift: int) -> None:
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x + shift] = 1

    with pytest.raises(IndexError, match=r"thread \d of thread block 0 leaves the memory of out"):
        launch(kernel, 1, 4, floats(4), checks=())


def test_a_loop_variable_keeps_its_type() -> None:
    @cuda.jit
    def kernel(out):
        for i in range(cuda.threadIdx.x, cuda.blockDim.x):
            out[i] = cuda.clz(i)

    out = np.zeros(4, np.int64)
    launch(kernel, 1, 4, out, checks=())
    assert out.tolist() == [32, 31, 30, 30]


def test_numbas_own_simulator_is_not_taken_for_numba(monkeypatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(RuntimeError, match="Unset it and start Python again"):
        launch(double, 1, 4, floats(4), floats(4))
