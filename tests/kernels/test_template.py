"""The kernels' files as templates: other sizes, functions of a reader's or a maintainer's own."""

import ast
from collections.abc import Callable
from itertools import chain, product

import pytest
import torch
from numba import cuda

from pa_tutorial.checks.cases import CASES, WORKED_EXAMPLE
from pa_tutorial.checks.comparing import bounds_of, compare
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
from pa_tutorial.kernels.sources import FOLDER, KernelFileError, Source, tree_of
from pa_tutorial.kernels.template import made
from pa_tutorial.kernels.v1 import ALL_LANES
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8
from simt import simulate
from simt.gpus import WARP_SIZE
from tests.kernels.kernel_inputs import problem


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


def test_a_group_shares_a_head_and_a_warp_a_block_of_v_without_overlap() -> None:
    """In every supported combination."""
    for sizes in product(HEAD_SIZES, BLOCK_SIZES, DTYPES, NUM_THREADS):
        g = Geometry(*sizes)
        shares = [g.head_elements(offset) for offset in range(g.THREAD_GROUP_SIZE)]
        assert {len(share) for share in shares} == {g.NUM_ELEMS_PER_THREAD}
        assert sorted(chain(*shares)) == list(range(g.HEAD_SIZE))
        places = []
        for lane in range(WARP_SIZE):
            places += product(g.value_rows(lane), g.value_tokens(lane))
        assert sorted(places) == list(product(range(g.HEAD_SIZE), range(g.BLOCK_SIZE)))
        assert 32 * g.NUM_TOKENS_PER_THREAD_GROUP == g.BLOCK_SIZE * g.THREAD_GROUP_SIZE


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head_size", 100, "head_size is 100; .*32, 64, 80"),
        ("block_size", 64, "block_size is 64"),
        ("partition_size", 24, "partition_size is 24; .*16"),
        ("cache_dtype", torch.float8_e5m2, "head_size is 120; .*x, which is 16"),
    ],
)
def test_an_unsupported_size_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"head_size": 120, "block_size": 16, name: value})


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
def warp_sum(value, mask):
    """Next lanes first."""
    step = 1
    while step <= mask:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step *= 2
    return value


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
        launch = each.prepare(
            WORKED_EXAMPLE.paged("vllm"), **({"partition_size": 8} if each.kernel == "v2" else {})
        )
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


def test_sums_may_be_added_up_in_another_order() -> None:
    """Other bits, within the bounds of the check."""
    case = CASES["decode/gqa"]
    mine, step = v1_backend.with_functions(v1=[warp_sum]), case.paged("vllm")
    assert {*mine.same_bits(v1_backend, step)} == {"qk", "qk_max"}
    found = mine.prepare(step).probe()
    for one in compare(found, {"the oracle": case.expected()}, bounds_of(case.id)):
        assert one.passed, one


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
        (lambda: made("v1", PARTITION_SIZE=8), "PARTITION_SIZE: no constant of v1.py"),
        (lambda: made("v2", PARTITION_SIZE=8.0), "PARTITION_SIZE is of type float"),  # 8.0 == 8
        (lambda: made("v2", PARTITION_SIZE=12), "PARTITION_SIZE is 12; .* 8"),
        (lambda: v1_backend.with_functions(v1=warp_sum), "v1 is of type"),  # it has an index
        (lambda: v2_backend.with_functions(vectors=[warp_sum]), "file is vectors; .* v2"),
        (lambda: with_theirs("def qk_dot(q_vecs):\n    return 1\n"), r"qk_dot takes \(q_vecs\)"),
        (lambda: with_theirs("def helper(a):\n    return a + MINE\n"), "helper uses MINE"),
        (lambda: with_theirs("def helper(a:\n"), "my_kernel/v1.py is damaged"),
        (lambda: with_theirs(without_text()), "qk_dot has no source"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_in_one_line(call: Callable, words: str) -> None:
    with pytest.raises((TypeError, ValueError, KernelFileError), match=words) as found:
        call()
    assert "\n" not in str(found.value)
