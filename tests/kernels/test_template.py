"""The kernels' files as templates: other sizes, a reader's functions in them, in their order."""

import ast
from collections.abc import Callable
from itertools import product

import pytest
import torch
from numba import cuda

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.kernels.cuda_backends import CudaBackend, v1_backend, v1_vector_backend, v2_backend
from pa_tutorial.kernels.geometry import CONSTANTS, NUM_THREADS, Geometry
from pa_tutorial.kernels.sources import FOLDER, KernelFileError, Source, tree_of
from pa_tutorial.kernels.template import made
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8
from simt import SimtError

STEP = WORKED_EXAMPLE.paged("vllm")
OTHER_NAMES = {"q_vecs_shape": "Q_VECS_SHAPE"}


@pytest.mark.parametrize("cache_dtype", [None, *FLOAT8])
def test_geometry_says_what_the_file_says(cache_dtype: torch.dtype | None) -> None:
    """Every constant that both have, for all sizes."""
    compared = set()
    for head_size, block_size, dtype, num_threads in product(
        HEAD_SIZES, BLOCK_SIZES, DTYPES, NUM_THREADS
    ):
        if cache_dtype and head_size % 16:
            continue  # no whole number of pieces
        options = {"partition_size": 2 * block_size, "cache_dtype": cache_dtype}
        geometry = Geometry(head_size, block_size, dtype, num_threads, **options)
        kernel = made("v2", **geometry.sizes)
        names = {name for name in CONSTANTS if hasattr(kernel, name)}
        compared |= names
        wrong = {n for n in names if getattr(kernel, n) != getattr(geometry, n)}
        assert not wrong, (geometry, wrong)
        assert geometry.q_vecs_shape == kernel.Q_VECS_SHAPE
    assert {*CONSTANTS} - compared == {"NUM_TOKENS_PER_THREAD_GROUP", "NUM_ELEMS_PER_THREAD"}


@pytest.mark.parametrize("seq_lens", [(1,), (11,), (100, 900), (9000,)], ids=str)
@pytest.mark.parametrize("kernel", ["naive", "v1", "v1_vector"])
def test_the_launcher_of_a_file_asks_for_what_the_package_does(
    kernel: str, seq_lens: tuple[int, ...]
) -> None:
    """The grid, the threads and the shared memory of launch_naive and launch_v1."""
    asked = []

    class Kernel:
        def __getitem__(self, sizes: tuple) -> Callable:
            asked.append(sizes)
            return lambda *arguments: None

    file = made(kernel)
    names = {"naive": ("naive_kernel", "launch_naive")}.get(
        kernel, ("paged_attention_v1", "launch_v1")
    )
    lens = torch.tensor(seq_lens)
    launcher = vars(file)[names[1]]
    names_of_file = {**vars(file), names[0]: Kernel()}
    function = type(launcher)(launcher.__code__, names_of_file)
    function(None, torch.empty(len(lens), 4, 32), None, None, 1.0, None, lens, None)
    geometry = Geometry(32, 8)
    shared_bytes = 4 * max(seq_lens) if kernel == "naive" else None
    wanted = shared_bytes or geometry.dynamic_shared_bytes(max(seq_lens))
    assert asked == [((4, len(lens)), geometry.NUM_THREADS, 0, wanted)]


def test_the_same_sizes_give_the_same_kernel() -> None:
    assert made("v1", HEAD_SIZE=64) is made("v1", HEAD_SIZE=64)
    assert made("v1", HEAD_SIZE=64) is not made("v1", HEAD_SIZE=32)
    assert made("v1", HEAD_SIZE=64, BLOCK_SIZE=16) is made("v1", BLOCK_SIZE=16, HEAD_SIZE=64)


def test_formulas_follow_a_constant() -> None:
    file = made("v1", HEAD_SIZE=64, BLOCK_SIZE=16, DTYPE=torch.float32)
    assert (file.VEC_SIZE, file.NUM_VECS_PER_THREAD, file.X) == (2, 16, 4)
    padded = made("v1", Q_VECS_SHAPE=(4, 5, 2))
    assert padded.Q_VECS_SHAPE == (4, 5, 2)


@cuda.jit(device=True)
def load_key(k_vecs, k_block, physical_block_offset, thread_idx):
    k_vecs[0, 0] = k_block[HEAD_SIZE, 0, 0]  # noqa: F821  a constant of the file


def test_a_readers_function_takes_the_place_of_ours_and_is_found_where_it_stands() -> None:
    mine = v1_backend.with_functions(v1=[load_key])
    with pytest.raises(SimtError) as found:
        mine.prepare(STEP).run()
    line = load_key.py_func.__code__.co_firstlineno + 2
    assert "k_block[HEAD_SIZE, 0, 0]" in str(found.value)
    assert f"line {line} of load_key" in str(found.value)


def by_element(name: str) -> Source:
    """Our function of v1.py, as if a reader had written it."""
    file = FOLDER / "v1.py"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    (node,) = (n for n in tree_of("v1").body if getattr(n, "name", "") == name)
    first = node.decorator_list[0].lineno
    return Source("".join(lines[first - 1 : node.end_lineno]), str(file), first)


@pytest.mark.parametrize("backend", [v1_vector_backend, v2_backend])
def test_a_function_of_v1_is_executed_before_the_vec_loads(backend: CudaBackend) -> None:
    """After them, its element loads would take their place, silently."""
    mine = backend.with_functions(v1=[by_element("load_key")])
    costs = []
    for each in (backend, mine, mine.with_functions(v1_vector=[by_element("load_key")])):
        launch = each.prepare(STEP, **({"partition_size": 8} if each.kernel == "v2" else {}))
        trace = getattr(launch, "partitions", launch).traced()
        costs.append(trace.only(array="k_cache").num_instructions)
    assert costs[0] == costs[1] < costs[2]


AFTER_OTHERS = {f"pa_tutorial.kernels.{file}" for file in ("v1_vector", "v2", "float8")}


def test_no_file_that_is_executed_after_others_is_imported_plainly() -> None:
    """The functions of a plain v2.py would call v1's element loads, silently."""
    others = {FOLDER / f"{file}.py" for file in ("v1_vector", "v2", "float8")}
    others |= {*FOLDER.parent.glob("exercises/window/*/v?_window.py")}  # executed after, too
    for file in sorted({*FOLDER.parent.rglob("*.py")} - others):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not modules & AFTER_OTHERS, file


def whole(text: str) -> Source:
    return Source(text, "my_kernel/v1.py", 1)


def without_text() -> Callable:
    """As a cell defines it that begins with %%time."""
    names = {}
    exec(compile("def qk_dot(q_vecs, k_vecs): return 1", "<timed exec>", "exec"), names)
    return cuda.jit(device=True)(names["qk_dot"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: made("v3"), "kernel is 'v3'; it must be one of naive, v1, v1_vector, v2"),
        (
            lambda: made("v1", HEAD_SIZE=100),
            "HEAD_SIZE is 100; it must be one of 32, 64, 80, 96, 112, 120, 128, 192, 256",
        ),
        (lambda: made("v1", BLOCK_SIZE=16.0), "BLOCK_SIZE is 16.0; it must be one of 8, 16, 32"),
        (lambda: made("v1", DTYPE=torch.float64), "DTYPE is torch.float64; it must be one of"),
        (lambda: made("v1", HEADSIZE=64), "HEADSIZE: no constant of v1.py"),
        (lambda: made("v1", PARTITION_SIZE=8), "PARTITION_SIZE: no constant of v1.py"),
        (
            lambda: v2_backend.with_functions(vectors=[load_key]),
            "file is vectors; it must be one of v1, v1_vector, v2 for v2",
        ),
        (
            lambda: v1_backend.with_functions(v1_vector=[load_key]),
            "file is v1_vector; it must be one of v1 for v1",
        ),
        (lambda: made("v1", CACHE_DTYPE=torch.float16), "CACHE_DTYPE is torch.float16; it must be"),
        (lambda: made("v1", NUM_QUERIES_PER_KV=0), "NUM_QUERIES_PER_KV is 0; it must be at least"),
        (
            lambda: made("v2", PARTITION_SIZE=12),
            "PARTITION_SIZE is 12; it must be a multiple of BLOCK_SIZE, which is 8",
        ),
        (lambda: made("v2", BLOCK_SIZE=16), "PARTITION_SIZE is 8; it must be a multiple of BLOCK"),
        (
            lambda: made("v1", (("v1", (whole("def qk_dot(q_vecs):\n    return 1\n"),)),)),
            r"qk_dot takes \(q_vecs\); it must take \(q_vecs, k_vecs\), as in v1.py",
        ),
        (
            lambda: made("v1", (("v1", (whole("def helper(a):\n    return a + MINE\n"),)),)),
            "helper uses MINE: the kernel's files have no such name",
        ),
        (
            lambda: made("v1", (("v1", (whole("@mine\ndef helper(a):\n    return a\n"),)),)),
            "helper uses mine: the kernel's files have no such name",
        ),
        (
            lambda: made("v1", (("v1", (whole("def helper(a:\n"),)),)),
            "my_kernel/v1.py is damaged: ",
        ),
        (lambda: made("v1", (("v1", (3,)),)), "3 has no source; it must be a function"),
        (lambda: made("v1", (("v1", (without_text(),)),)), "qk_dot has no source; it must be a f"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_in_one_line(call: Callable, words: str) -> None:
    with pytest.raises((ValueError, KernelFileError), match=words) as found:
        call()
    assert "\n" not in str(found.value)


def test_a_count_that_is_no_whole_number_makes_no_kernel() -> None:
    """2.0 == 2, so the kernel for the one would be found for the other."""
    for name in ("NUM_QUERIES_PER_KV", "PARTITION_SIZE"):
        with pytest.raises(TypeError, match=f"{name} is of type float; it must be a whole number"):
            made("v2", **{name: 8.0})


def test_a_function_without_a_list_is_refused() -> None:
    """Numba's functions have an index, so Python would iterate over one."""
    with pytest.raises(TypeError, match=r"v1 is of type .*; it must be a list of functions"):
        v1_backend.with_functions(v1=load_key)
