"""The kernels' files as templates: other sizes, a reader's functions in them, in their order."""

import ast
from collections.abc import Callable
from itertools import product

import pytest
import torch
from numba import cuda

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    arguments_of,
    naive_backend,
    partials_of,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.geometry import CONSTANTS, NUM_THREADS, Geometry
from pa_tutorial.kernels.sources import FOLDER, KernelFileError, Source
from pa_tutorial.kernels.template import made
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8
from simt import SimtError, simulate
from tests.kernels.kernel_inputs import problem

STEP = WORKED_EXAMPLE.paged("vllm")


@pytest.mark.parametrize("cache_dtype", [None, FLOAT8[0]])
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


@pytest.mark.parametrize("backend", [naive_backend, v1_backend, v2_backend])
def test_the_launchers_of_a_file_launch_what_the_package_does(backend: CudaBackend) -> None:
    """Those that notebooks show. A short context needs the memory of out_smem, a long one more."""
    for seq_lens in ((11,), (300, 40)):
        step = problem(seq_lens=seq_lens).paged("vllm")
        sizes = {"partition_size": 64} if backend is v2_backend else {}
        launch, (out, *inputs) = backend.prepare(step, **sizes), arguments_of(step)
        file = getattr(launch, "partitions", launch).namespace
        with simulate():
            if backend is v2_backend:
                partials = partials_of(step, launch.tmp_out.shape[2])
                file.launch_partitions(*partials, *inputs)
                file.launch_reduce(out, *partials, step.seq_lens)
            else:
                vars(file)[f"launch_{backend.kernel}"](out, *inputs)
        assert torch.equal(out, launch.run())


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


@pytest.mark.parametrize("backend", [v1_vector_backend, v2_backend])
def test_a_function_of_v1_is_executed_before_the_vec_loads(backend: CudaBackend) -> None:
    """After them, its element loads would take their place, silently."""
    by_element = [v1_backend.namespace().load_key]
    mine = backend.with_functions(v1=by_element)
    costs = []
    for each in (backend, mine, mine.with_functions(v1_vector=by_element)):
        launch = each.prepare(STEP)
        trace = getattr(launch, "partitions", launch).traced()
        costs.append(trace.only(array="k_cache").num_instructions)
    assert costs[0] == costs[1] < costs[2]


def test_no_file_that_is_executed_after_others_is_imported_plainly() -> None:
    """The functions of a plain v2.py would call v1's element loads, silently."""
    after = {FOLDER / f"{file}.py" for file in ("v1_vector", "v2", "float8")}
    names = {f"pa_tutorial.kernels.{file.stem}" for file in after}
    after |= {*FOLDER.parent.glob("exercises/window/*/v?_window.py")}  # executed after, too
    for file in {*FOLDER.parent.rglob("*.py")} - after:
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not modules & names, file


def with_theirs(mine: Callable | str) -> object:
    """v1 with a reader's function, or file."""
    mine = Source(mine, "my_kernel/v1.py", 1) if isinstance(mine, str) else mine
    return made("v1", (("v1", (mine,)),))


def without_text() -> Callable:
    """As a cell defines it that begins with %%time."""
    names = {}
    exec(compile("def qk_dot(q_vecs, k_vecs): return 1", "<timed exec>", "exec"), names)
    return cuda.jit(device=True)(names["qk_dot"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: made("v3"), "kernel is 'v3'"),
        (lambda: made("v1", HEAD_SIZE=100), "HEAD_SIZE is 100"),
        (lambda: made("v1", BLOCK_SIZE=16.0), "BLOCK_SIZE is 16.0"),
        (lambda: made("v1", DTYPE=torch.float64), "DTYPE is torch.float64"),
        (lambda: made("v1", CACHE_DTYPE=torch.float16), "CACHE_DTYPE is torch.float16"),
        (lambda: made("v1", PARTITION_SIZE=8), "PARTITION_SIZE: no constant of v1.py"),
        (lambda: made("v1", NUM_QUERIES_PER_KV=0), "NUM_QUERIES_PER_KV is 0"),
        (lambda: made("v2", PARTITION_SIZE=12), "PARTITION_SIZE is 12; .* 8"),
        (lambda: made("v2", BLOCK_SIZE=16), "PARTITION_SIZE is 8; .* 16"),
        (lambda: v2_backend.with_functions(vectors=[load_key]), "file is vectors; .* v2"),
        (lambda: v1_backend.with_functions(v1_vector=[load_key]), "file is v1_vector; .* v1"),
        (lambda: with_theirs("def qk_dot(q_vecs):\n    return 1\n"), r"qk_dot takes \(q_vecs\)"),
        (lambda: with_theirs("def helper(a):\n    return a + MINE\n"), "helper uses MINE"),
        (lambda: with_theirs("@mine\ndef helper(a):\n    return a\n"), "helper uses mine"),
        (lambda: with_theirs("def helper(a:\n"), "my_kernel/v1.py is damaged"),
        (lambda: with_theirs(3), "3 has no source"),
        (lambda: with_theirs(without_text()), "qk_dot has no source"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_in_one_line(call: Callable, words: str) -> None:
    with pytest.raises((ValueError, KernelFileError), match=words) as found:
        call()
    assert "\n" not in str(found.value)


def test_a_count_that_is_no_whole_number_or_a_function_without_a_list_is_refused() -> None:
    """2.0 == 2, so the kernel for the one would be found for the other. Numba's functions have an
    index, so Python would iterate over one."""
    for name in ("NUM_QUERIES_PER_KV", "PARTITION_SIZE"):
        with pytest.raises(TypeError, match=f"{name} is of type float"):
            made("v2", **{name: 8.0})
    with pytest.raises(TypeError, match="v1 is of type"):
        v1_backend.with_functions(v1=load_key)
