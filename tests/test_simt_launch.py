"""launch: arguments, options, errors, snapshots; what a reader meets first."""

import functools
import linecache
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from numba import cuda, float32, float64, int32
from simt_kernels import clean  # noqa: F401  (numba.cuda is imported before the first launch)

from pa_tutorial.simt import SimtError, Unsupported, launch

N = 64


@cuda.jit
def double(out, a):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] * float32(2)


@cuda.jit
def block_sum(out, a):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[t] = a[cuda.blockIdx.x, t]
    cuda.syncthreads()
    for i in range(N):
        total += s[i]
    if t == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def neighbour(out, a):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    out[t] = s[N - 1 - t]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


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


def plain(x):
    return x + 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("out[0] = cuda.threadIdx.w", "cuda.threadIdx has x, y and z, not w"),
        ("cuda.nanosleep(5)", "cuda.nanosleep is not supported"),
        ("cuda.no_such_thing()", "cuda.no_such_thing does not exist"),
        ("out[0] = np.exp(a[0])", "np.exp is not supported"),
        ("out[0] = plain(a[0])", "plain is a plain Python function"),
        ("out[0] = a.sum()", "a.sum(...) is not supported"),
        ("out[0] = [1, 2][0]", "List is not supported"),
        ("out[0] = missing", "missing is not defined"),
        ("assert a[0] > 0", "Assert is not supported"),
        ("out[0] = a[0, 0]", "a has 1 dimensions, the index has 2"),
        ("out[0.5] = 1", "must be an integer"),
        ("out[0] = a", "only a number can be stored"),
        ("out[0] = a + 1", "the array a is not a number"),
        ("out[0] = ~a[0]", "bit operations need integers"),
        ("for x in a: out[0] = x", "a loop needs range(...) or a tuple"),
        ("s = cuda.shared.array(2 * N, float32)", "Numba does not take 2 * N"),
        ("out[0] = cuda.shfl_sync(-1, float16(1), 0)", "not float16"),
        ("return a[0]", "a kernel cannot return a value"),
        ("out[0] = min(*a)", "is not supported"),
        ("x: int = 1", "AnnAssign is not supported"),
        ("out[0] = round(a[0], 1)", "round(a[0], 1): not with 2 arguments"),
        ("out[0] = a[0] is None", "a[0] is None is not supported"),
        ("out[0] = a[a[0]]", "must be an integer, not float32"),
        ("out[0] = len(t)", "has no len"),
        ("out[0] = (1, 2, 3)[a[0]]", "must be an integer, not float32"),
        ("out[0] = cuda.grid(4)[0]", "1, 2 or 3 dimensions, not 4"),
        ("s = cuda.shared.array(4, 'float3')", "whole numbers and a type of number"),
        ("for i in range(2.5): out[0] = i", "range needs integers, not float64"),
        ("a[0], out[0] = 1, 2, 3", "needs 2 values"),
        ("out[0] = a[::2][0]", "a slice with a step is not supported"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(line: str, words: str, tmp_path) -> None:
    names = {"cuda": cuda, "np": np, "plain": plain, "N": N, "float32": float32}
    names["float16"] = np.float16
    path = tmp_path / "kernel.py"
    path.write_text(f"def kernel(out, a):\n    t = cuda.threadIdx.x\n    {line}\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(Unsupported) as caught:
        launch(names["kernel"], 1, 1, floats(4), floats(4))
    assert words in str(caught.value)
    assert "line 3, in kernel" in str(caught.value)
    assert line in str(caught.value)


def test_a_kernel_without_source_says_so() -> None:
    names: dict[str, object] = {"cuda": cuda}
    exec("def kernel(out): out[0] = 1", names)
    with pytest.raises(Unsupported, match="The source of kernel cannot be read"):
        launch(names["kernel"], 1, 1, floats(4))


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


# Findings ------------------------------------------------------------------------------------


def test_a_finding_reads_as_a_sentence() -> None:
    with pytest.raises(SimtError) as caught:
        launch(neighbour, 1, N, floats(N), floats(N))
    message = str(caught.value)
    assert "race: thread 0 of thread block 0 reads s[63], where thread 63 was before" in message
    assert "out[t] = s[N - 1 - t]" in message
    assert "s[t] = a[t]" in message


def test_findings_are_collected_once_for_each_place() -> None:
    report = launch(neighbour, 1, N, floats(N), floats(N), collect=True)
    assert [f.check for f in report.findings] == ["race"]
    assert not report.clean
    assert "1 finding" in str(report)


def test_threads_and_blocks_of_several_dimensions_are_named_by_their_indices() -> None:
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.y == 3 and cuda.blockIdx.y == 1:
            out[99] = 1

    with pytest.raises(SimtError) as caught:
        launch(kernel, (2, 2), (8, 4), floats(4))
    assert "thread 24 = (0, 3, 0) of thread block (0, 1, 0) asks for out[99]" in str(caught.value)
    assert caught.value.finding.shape == (4,)


def test_collecting_goes_on_after_an_access_out_of_bounds() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t + 1]

    out = np.full(4, np.nan, np.float32)
    a = floats(4)
    report = launch(kernel, 1, 4, out, a, collect=True)
    assert [f.check for f in report.findings] == ["memory"]
    np.testing.assert_array_equal(out[:3], a[1:])


def test_strictness_about_exited_threads_is_an_option() -> None:
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        if t >= 40:
            return
        cuda.syncthreads()
        out[t] = 1

    with pytest.raises(SimtError, match="has returned"):
        launch(kernel, 1, 64, floats(64))
    for order in ("together", "forward"):
        assert launch(kernel, 1, 64, floats(64), exited_may_skip=True, order=order).clean


def test_shuffles_order_memory_only_on_request() -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        s[t] = t
        out[t] = cuda.shfl_sync(0xFFFFFFFF, t, 0)
        out[t] += s[31 - t]

    with pytest.raises(SimtError, match="race"):
        launch(kernel, 1, 32, np.zeros(32, np.int32))
    assert launch(kernel, 1, 32, np.zeros(32, np.int32), shuffles_order_memory=True).clean


def test_orders_differ_where_there_is_a_race_and_repeat_themselves() -> None:
    @cuda.jit
    def kernel(out):
        out[0] = cuda.threadIdx.x // 32

    last = {}
    for order in ("together", "forward", "reverse", 1, 2, 3):
        runs = set()
        for _ in range(3):
            out = np.zeros(1)
            launch(kernel, 1, 128, out, order=order, checks=())
            runs.add(float(out[0]))
        assert len(runs) == 1
        last[order] = runs.pop()
    assert (last["forward"], last["reverse"]) == (3, 0)
    assert len({last[seed] for seed in (1, 2, 3)}) > 1


# Looking inside ------------------------------------------------------------------------------


def test_variables_can_be_read_at_the_end() -> None:
    a = floats(2, N)
    report = launch(block_sum, 2, N, floats(2), a, watch="end")
    shots = report.at("end")
    assert [shot.block for shot in shots] == [(0, 0, 0), (1, 0, 0)]
    np.testing.assert_array_equal(shots[1]["s"], a[1])
    np.testing.assert_allclose(shots[1]["total"], np.full(N, a[1].sum()), rtol=1e-4)
    rows = report.rows("end", "t", "total")
    assert rows.dtype.names == ("block", "thread", "t", "total")
    np.testing.assert_array_equal(rows.t, np.tile(np.arange(N), 2))


@pytest.mark.parametrize("order", ["together", "reverse"])
def test_variables_can_be_read_at_a_line_and_at_a_barrier(order: str) -> None:
    a = floats(1, N)
    watch = ["cuda.syncthreads()", "total += s[i]"]
    report = launch(
        block_sum, 1, N, floats(1), a, watch=watch, names=["s", "i", "total"], order=order
    )
    warps = 1 if order == "together" else 2
    at_barrier = report.at("cuda.syncthreads()")
    assert len(at_barrier) == warps
    np.testing.assert_array_equal(at_barrier[-1]["s"].compressed(), a[0])
    rows = report.rows("total += s[i]", "i", "total")
    assert len(rows) == N * N
    third = rows[(rows.thread == 5) & (rows.i == 3)]
    np.testing.assert_allclose(third.total, a[0, :3].sum(), rtol=1e-6)


def test_what_nobody_has_written_is_masked() -> None:
    @cuda.jit
    def kernel(out):
        row = cuda.local.array((2, 3), float64)
        s = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        row[1, 2] = t
        s[2] = 7
        if t > 0:
            late = t
            out[late] = 1

    shot = launch(kernel, 1, 3, floats(4), watch="end", checks=("init",)).at("end")[0]
    assert shot["row"].shape == (3, 2, 3)
    assert shot["row"][2, 1, 2] == 2
    assert shot["row"].mask.sum() == 3 * 5
    assert shot["s"].tolist() == [None, None, 7.0, None]
    assert shot["late"].tolist() == [None, 1, 2]
    with pytest.raises(KeyError, match="nothing has no value here"):
        shot["nothing"]


def test_a_line_can_be_watched_by_its_number() -> None:
    line = block_sum.py_func.__code__.co_firstlineno + 5
    report = launch(block_sum, 1, N, floats(1), floats(1, N), watch=line)
    assert [shot.code for shot in report.at(line)] == ["s[t] = a[cuda.blockIdx.x, t]"]
    assert report.at(line, block=0)
    assert not report.at(line, block=1)


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
    (tmp_path / "kernel_in_a_file.py").write_text(kernel)
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True)


def test_the_simulator_knows_nothing_of_attention() -> None:
    names = "import sys, pa_tutorial.simt; print([m for m in sys.modules if m[:2] == 'pa'])"
    run = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
    modules = [m for m in eval(run.stdout) if m.startswith("pa_tutorial.")]
    assert modules
    assert all(m.startswith("pa_tutorial.simt") for m in modules), modules


README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_kernel_of_the_readme_runs_in_a_notebook_cell() -> None:
    """Pasted as it stands there, it prints what stands there."""
    section = README.split("## Check a CUDA kernel of your own")[1]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.text == printed


def test_the_successor_of_numba_cuda_is_understood(monkeypatch) -> None:
    """numba_cuda_mlir has the same names, as objects of its own; a stand-in is enough here."""
    successor = ModuleType("numba_cuda_mlir.cuda")
    for name in ("threadIdx", "syncthreads", "atomic", "shared"):
        setattr(successor, name, SimpleNamespace())
    successor.shared.array, successor.atomic.add = object(), object()
    monkeypatch.setitem(sys.modules, successor.__name__, successor)
    names = {"cuda": successor, "N": N, "float32": float32}

    dispatcher = SimpleNamespace(py_func=FunctionType(neighbour.py_func.__code__, names))
    with pytest.raises(SimtError, match="race"):
        launch(dispatcher, 1, N, floats(N), floats(N))


# What readers do to their files and names ------------------------------------------------------


def imported(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_that_has_changed_since_its_import_is_refused(tmp_path) -> None:
    """Otherwise the text of another kernel would run under this one's name."""
    path = tmp_path / "changed.py"
    first, second = "def one(out):\n    out[0] = 1\n", "def two(out):\n    out[0] = 2\n"
    path.write_text(first + second)
    module = imported(path)
    path.write_text("def zero(out):\n    out[0] = 0\n" + first + second)
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
        "    return kernel\n"
    )
    out = floats(1)
    launch(imported(path).make(), 1, 1, out)
    assert out[0] == 3


def test_a_number_means_a_line_of_the_kernels_own_file(tmp_path) -> None:
    line = double.py_func.__code__.co_firstlineno + 4
    path = tmp_path / "elsewhere.py"
    path.write_text(
        "from numba import cuda\n@cuda.jit(device=True)\ndef far(x):\n"
        + "    # nothing\n" * line
        + "    return x\n"
    )
    far = imported(path).far

    @cuda.jit
    def kernel(out):
        out[0] = far(1)

    with pytest.raises(ValueError, match="no statement of kernel is at"):
        launch(kernel, 1, 1, floats(1), watch=line + 4)


def test_the_end_is_no_piece_of_a_line() -> None:
    @cuda.jit
    def kernel(out):
        end = 3
        out[0] = end

    report = launch(kernel, 1, 1, floats(1), watch=("end = 3", "end"))
    assert [shot.line for shot in report.at("end")] == ["end"]
    assert [shot.code for shot in report.at("end = 3")] == ["end = 3"]


def test_names_may_be_one_string() -> None:
    report = launch(double, 1, 4, floats(4), floats(4), watch="end", names="i", checks="race")
    assert list(report.at()[0].values) == ["i"]
    assert report.checks == ("race",)


@pytest.mark.parametrize(("name", "words"), [("thread", "columns already"), ("s", "is an array")])
def test_rows_holds_only_scalars_under_their_own_names(name: str, words: str) -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.local.array(2, float32)
        thread = cuda.threadIdx.x
        s[0] = s[1] = thread
        out[thread] = s[0]

    report = launch(kernel, 1, 4, floats(4), watch="end")
    with pytest.raises(ValueError, match=words):
        report.rows("end", name)


def test_a_row_that_does_not_exist_is_no_other_row() -> None:
    """After the finding its lanes write nowhere, and meet nobody."""

    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        row = out[i]
        row[0] = i + 10

    out = np.zeros((4, 2))
    report = launch(kernel, 1, 6, out, collect=True)
    (finding,) = report.findings
    assert (finding.check, finding.thread, finding.index) == ("memory", 4, (4,))
    assert finding.shape == (4, 2)
    np.testing.assert_array_equal(out, [[10, 0], [11, 0], [12, 0], [13, 0]])


def test_an_item_divided_in_place_by_zero_is_an_error() -> None:
    @cuda.jit
    def kernel(a, b):
        a[cuda.threadIdx.x] //= b[cuda.threadIdx.x]

    with pytest.raises(ZeroDivisionError, match="thread 1 of thread block 1"):
        launch(kernel, 2, 2, np.ones(2, np.int64), np.array([1, 0]), order="reverse")


def test_a_configured_kernel_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="must be a @cuda"):
        launch(SimpleNamespace(), 1, 1)


@pytest.mark.parametrize("chosen", ["row = out[i]", "row = out[i] if i >= 2 else out[1]"])
def test_a_lost_row_stays_lost_when_views_join(chosen: str, tmp_path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        "from numba import cuda\ndef kernel(out):\n    i = cuda.threadIdx.x\n    row = out[0]\n"
        f"    if i >= 2:\n        {chosen}\n    row[i % 2] = i + 10\n"
    )
    whole = np.zeros((6, 2))
    report = launch(imported(path).kernel, 1, 6, whole[:4], collect=True)
    assert [f.check for f in report.findings] == ["memory"]
    np.testing.assert_array_equal(whole, [[10, 11], [0, 0], [12, 0], [0, 13], [0, 0], [0, 0]])


def test_a_function_that_calls_itself_and_its_own_name_are_known(tmp_path) -> None:
    path = tmp_path / "recursion.py"
    path.write_text(
        "from numba import cuda\n@cuda.jit(device=True)\ndef down(n):\n"
        "    if n > 0:\n        return down(n - 1)\n    return 7\n"
        "@cuda.jit\ndef kernel(out):\n    out[0] = down(3)\n"
    )
    out = floats(1)
    launch(imported(path).kernel, 1, 1, out)
    assert out[0] == 7


def test_equal_kernels_of_two_files_keep_their_files(tmp_path) -> None:
    kernels = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.py"
        path.write_text(f"def kernel(out):\n    out[9] = 1  # {name}\n")
        kernels.append(imported(path).kernel)
    for name, kernel in zip(("first", "second"), kernels, strict=True):
        (finding,) = launch(kernel, 1, 1, floats(1), collect=True).findings
        assert finding.site.code.endswith(f"# {name}")
        assert finding.site.file.endswith(f"{name}.py")


def test_a_variable_of_two_types_is_shown_whole() -> None:
    @cuda.jit
    def kernel(out):
        total = 0
        t = cuda.threadIdx.x
        if t >= 2:
            total = 2.5
        out[t] = total

    rows = launch(kernel, 1, 4, floats(4), watch="end").rows("end", "total")
    assert rows.total.tolist() == [0, 0, 2.5, 2.5]


def test_a_loop_variable_keeps_its_type() -> None:
    @cuda.jit
    def kernel(out):
        for i in range(cuda.threadIdx.x, cuda.blockDim.x):
            out[i] = cuda.clz(i)

    out = np.zeros(4, np.int64)
    launch(kernel, 1, 4, out, checks=())
    assert out.tolist() == [32, 31, 30, 30]


def test_findings_name_the_right_item_of_reversed_views() -> None:
    @cuda.jit
    def kernel(out, a):
        out[0] = a[1, 2]

    a = np.zeros((2, 3))[:, ::-1]
    with pytest.raises(SimtError) as caught:
        launch(kernel, 1, 1, floats(1), a, unwritten="a")
    assert caught.value.finding.index == (1, 2)


def test_a_syncwarp_that_names_no_caller_orders_nothing() -> None:
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x == 0:
            cuda.syncwarp(2)

    report = launch(kernel, 1, 32, floats(1), collect=True)
    assert {f.check for f in report.findings} == {"sync"}


def test_names_that_no_function_has_are_refused() -> None:
    with pytest.raises(ValueError, match="has no variable 'typo'"):
        launch(double, 1, 4, floats(4), floats(4), watch="end", names="typo")


def test_numbas_own_simulator_is_not_taken_for_numba(monkeypatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(RuntimeError, match="Unset it and start Python again"):
        launch(double, 1, 4, floats(4), floats(4))
