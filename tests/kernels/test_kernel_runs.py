"""The paged kernels as functions of tensors: sizes, strides, views, one kernel a geometry."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.kernels import launch as package
from pa_tutorial.kernels.geometry import NUM_THREADS
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem
from tests.kernels.kernel_inputs import arguments, prepare_naive, prepare_v1, problem

PREPARE = {"cuda_naive": prepare_naive, "cuda_v1": prepare_v1}
by_stage = pytest.mark.parametrize(
    "stage", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in PREPARE]
)
by_function = pytest.mark.parametrize(
    "function",
    [package.paged_attention_v1, package.paged_attention_v1_vector, package.paged_attention_v2],
    ids=lambda f: f.__name__,
)


def is_right(out: Tensor, case: DecodeProblem) -> bool:
    """One rounding to the dtype of out, and sums in float32."""
    bound = torch.finfo(case.dtype).eps / 2 + 3e-6
    return relative_errors(to_float64(out), case.expected()["out"]).max() <= bound


# vLLM's own grid (its tests/kernels/test_attention.py) is all of dtypes, heads, head sizes, block
# sizes and ALiBi. Here every two values of any two of these, and of the thread counts, meet.
GRID = []
for i, j in itertools.product(range(len(HEAD_SIZES)), range(len(BLOCK_SIZES))):
    num_heads, num_kv_heads = ((5, 5), (8, 1))[(i + j) % 2]
    sizes = {"dtype": DTYPES[(i + j) % 3], "head_size": HEAD_SIZES[i], "block_size": BLOCK_SIZES[j]}
    sizes |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "alibi": bool((i // 2 + j) % 2)}
    name = "-".join(map(str, sizes.values())).removeprefix("torch.")
    GRID.append(pytest.param(sizes, NUM_THREADS[(i + 2 * j) % 3], id=name))


@by_stage
@pytest.mark.parametrize(("sizes", "num_threads"), GRID)
def test_any_sizes_and_numbers_of_threads(stage: str, sizes: dict, num_threads: int) -> None:
    case = problem(seq_lens=(70, 33, 4), **sizes)
    prepared = PREPARE[stage](**arguments(case), num_threads=num_threads)
    assert prepared.geometry.num_threads == num_threads
    assert is_right(prepared.run(), case)


@by_function
def test_a_stride_that_nobody_takes_may_be_anything(function: Callable) -> None:
    """Of one sequence, one head and one block, the strides are never used: PyTorch allows any."""
    sizes = {"seq_lens": (9,), "num_heads": 1, "num_kv_heads": 1, "dtype": torch.float16}
    inputs = arguments(problem(**sizes))
    used = int(inputs["block_tables"][0, 0])
    inputs |= {name: inputs[name][used : used + 1] for name in ("k_cache", "v_cache")}
    inputs["block_tables"] = torch.zeros(1, 1, dtype=torch.int32)
    strange = {
        name: inputs[name].as_strided(
            inputs[name].shape, (12_345, 12_345, *inputs[name].stride()[2:])
        )
        for name in ("q", "k_cache", "v_cache")
    }
    assert torch.equal(function(**inputs | strange), function(**inputs))


@by_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_views_into_larger_tensors_give_the_same_output(
    function: Callable, dtype: torch.dtype
) -> None:
    """As an engine has them: they begin later, and their strides are others."""
    inputs = arguments(problem(dtype=dtype, seq_lens=(70, 9), alibi=True))
    views = inputs | {"alibi_slopes": inputs["alibi_slopes"].double()}
    for name in set(views) - {"scale"}:
        dim = 0 if name == "q" else 1
        around = torch.full_like(views[name], math.nan if views[name].is_floating_point() else -9)
        views[name] = torch.stack([around, views[name]], dim).select(dim, 1)
    assert torch.equal(function(**views), function(**inputs))


@by_stage
def test_an_output_is_new_memory_without_a_graph(stage: str) -> None:
    case = problem(alibi=True, strided_q=True)
    tensors = arguments(case)
    for name in ("q", "k_cache", "v_cache", "alibi_slopes"):
        tensors[name].requires_grad_()
    prepared = PREPARE[stage](**tensors)
    out = prepared.out
    assert out.isnan().all()
    assert out.is_contiguous()
    assert prepared.run() is out
    assert not out.requires_grad
    assert is_right(out, case)


@by_stage
def test_a_geometry_has_one_kernel_and_another_geometry_another(stage: str) -> None:
    """Compiling takes a second: a second call must not compile again."""
    first, again = (PREPARE[stage](**arguments(problem(seed=seed))) for seed in (0, 1))
    assert first.kernel is again.kernel
    for change in ({"head_size": 64}, {"block_size": 8}, {"dtype": torch.float16}):
        assert PREPARE[stage](**arguments(problem(**change))).kernel is not first.kernel
    other = PREPARE[stage](**arguments(problem(num_heads=6, num_kv_heads=1)))
    assert (other.grid, other.geometry.num_queries_per_kv) == ((6, 2, 1), 6)


@pytest.mark.cuda_v1
@pytest.mark.parametrize("num_threads", [64, 256])
@pytest.mark.parametrize(
    "changes",
    [{}, {"head_size": 120, "dtype": torch.bfloat16, "block_size": 8}, {"block_size": 32}],
    ids=str,
)
def test_shared_bytes_are_those_that_the_kernel_allocates(changes: dict, num_threads: int) -> None:
    prepared = prepare_v1(**arguments(problem(seq_lens=(9,), **changes)), num_threads=num_threads)
    arrays = [a for a in prepared.simulate(trace=0).trace.arrays if a.space == "shared"]
    num_bytes = {a.name: math.prod(a.shape) * a.dtype.itemsize for a in arrays}
    assert num_bytes.pop("shared_mem") == prepared.shared_bytes
    assert sum(num_bytes.values()) == prepared.geometry.static_shared_bytes


# What the bounds of the cases cannot see ------------------------------------------------------


@by_stage
@pytest.mark.parametrize("name", ["float16", "bfloat16", "worked_example"])
def test_only_the_output_is_rounded(stage: str, name: str) -> None:
    """Rows that the warps exchange in float16 would be right within the bound of the case.

    But then one element in ten differs from the exact output, rounded once.
    """
    case = CASES[f"decode/{name}"]
    out = PREPARE[stage](**vars(case.paged("vllm"))).run()
    exact = torch.from_numpy(case.expected()["out"]).to(case.dtype)
    assert (out == exact).double().mean() > 0.98


@by_stage
def test_infinity_in_slots_without_a_token_changes_nothing(stage: str) -> None:
    """A kernel that finds the tail of V by NaN would pass all cases."""
    inputs = vars(CASES["decode/tail"].paged("vllm"))
    outs = []
    for stale in (math.nan, math.inf):
        caches = {name: inputs[name].nan_to_num(nan=stale) for name in ("k_cache", "v_cache")}
        outs.append(PREPARE[stage](**{**inputs, **caches}).run())
    assert torch.equal(*outs)
