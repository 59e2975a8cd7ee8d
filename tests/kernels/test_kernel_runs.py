"""The paged kernels as functions of tensors: strides, thread counts, one kernel a geometry."""

import math
from collections.abc import Callable

import numba
import numpy as np
import pytest
import torch
from kernel_inputs import arguments, problem, values
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.compiled import naive_signature, v1_signature
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import prepare_naive, prepare_v1
from pa_tutorial.kernels.loads import Loads, element_loads
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from pa_tutorial.walk.problem import DTYPES, DecodeProblem

PREPARE = {"cuda_naive": prepare_naive, "cuda_v1": prepare_v1}
SIGNATURE = {"cuda_naive": naive_signature, "cuda_v1": v1_signature}
by_stage = pytest.mark.parametrize(
    "stage", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in PREPARE]
)


def error(out: Tensor, case: DecodeProblem) -> float:
    return float(relative_errors(to_float64(out), case.expected()["out"]).max())


def bound(dtype: torch.dtype) -> float:
    """One rounding to the dtype of out, and sums in float32."""
    return torch.finfo(dtype).eps / 2 + 2e-6


@by_stage
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_q_is_read_by_its_stride(stage: str, dtype: torch.dtype) -> None:
    case = problem(strided_q=True, dtype=dtype)
    prepared = PREPARE[stage](**arguments(case))
    prepared.simulate()
    assert error(prepared.out, case) < bound(dtype)


def with_odd_stride(tensor: Tensor, dim: int) -> Tensor:
    """The same memory. The stride of a dimension of size 1 moves nowhere: PyTorch allows any."""
    assert tensor.shape[dim] == 1
    strides = list(tensor.stride())
    strides[dim] = 12_345
    return tensor.as_strided(tensor.shape, strides)


# argument and dimension of size 1, and the problem with one of it
ODD = {
    "one_head": ("q", 1, {"num_heads": 1, "num_kv_heads": 1}),
    "one_sequence": ("q", 0, {"seq_lens": (20,)}),
    "one_kv_head_of_k": ("k_cache", 1, {"num_kv_heads": 1}),
    "one_kv_head_of_v": ("v_cache", 1, {"num_kv_heads": 1}),
    "one_block_of_k": ("k_cache", 0, {"seq_lens": (9,)}),
    "one_block_of_v": ("v_cache", 0, {"seq_lens": (9,)}),
}


@by_stage
@pytest.mark.parametrize("odd", ODD)
def test_the_stride_of_a_dimension_of_one_does_not_matter(stage: str, odd: str) -> None:
    name, dim, changes = ODD[odd]
    case = problem(**changes)
    tensors = arguments(case)
    if "block" in odd:
        used = int(tensors["block_tables"][0, 0])
        for cache in ("k_cache", "v_cache"):
            tensors[cache] = tensors[cache][used : used + 1]
        tensors["block_tables"] = torch.zeros(1, 1, dtype=torch.int32)
    prepared = PREPARE[stage](**{**tensors, name: with_odd_stride(tensors[name], dim)})
    prepared.simulate()
    assert error(prepared.out, case) < bound(torch.float32)


@by_stage
def test_inputs_are_only_read(stage: str) -> None:
    tensors = arguments(problem(alibi=True, dtype=torch.bfloat16))
    before = {name: t.clone() for name, t in tensors.items() if isinstance(t, Tensor)}
    PREPARE[stage](**tensors).simulate()
    for name, tensor in before.items():
        torch.testing.assert_close(
            tensors[name],
            tensor,
            rtol=0,
            atol=0,
            equal_nan=True,
            msg=lambda why, name=name: f"{name} was changed: {why}",
        )


@by_stage
def test_out_is_dense_and_its_own_memory(stage: str) -> None:
    tensors = arguments(problem(strided_q=True))
    out = PREPARE[stage](**tensors).out
    assert out.is_contiguous()
    assert out.untyped_storage().data_ptr() != tensors["q"].untyped_storage().data_ptr()


@by_stage
def test_out_holds_nan_before_the_run_and_none_after(stage: str) -> None:
    prepared = PREPARE[stage](**arguments(problem()))
    before = prepared.out.isnan()
    prepared.simulate()
    assert (before.all(), prepared.out.isnan().any()) == (True, False)


@by_stage
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_input_that_requires_grad_gives_a_result_without_a_graph(
    stage: str, dtype: torch.dtype
) -> None:
    case = problem(dtype=dtype, alibi=True)
    tensors = arguments(case)
    for name in ("q", "k_cache", "v_cache", "alibi_slopes"):
        tensors[name].requires_grad_()
    prepared = PREPARE[stage](**tensors)
    prepared.simulate()
    assert not prepared.out.requires_grad
    assert error(prepared.out, case) < bound(dtype)


def without_layout(kind: numba.types.Type) -> object:
    """An array by its dtype and dimensions; a number by itself."""
    return (kind.dtype, kind.ndim) if isinstance(kind, numba.types.Array) else kind


@by_stage
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alibi", [False, True])
def test_numba_sees_the_types_that_the_kernel_is_compiled_for(
    stage: str, dtype: torch.dtype, alibi: bool
) -> None:
    """With a scale of float64, a GPU would compute the scores in float64; nothing here would."""
    prepared = PREPARE[stage](**arguments(problem(dtype=dtype, alibi=alibi)))
    arrays = [a.numpy() if isinstance(a, Tensor) else a for a in prepared.kernel_arguments]
    found = [without_layout(numba.typeof(a)) for a in arrays]
    assert found == [without_layout(kind) for kind in SIGNATURE[stage](prepared.geometry)]


@by_stage
def test_slopes_of_float64_become_float32(stage: str) -> None:
    """With float64 slopes, Numba would compile a kernel that computes its scores in float64."""
    tensors = arguments(problem(alibi=True))
    prepared = PREPARE[stage](**{**tensors, "alibi_slopes": tensors["alibi_slopes"].double()})
    dtypes = [a.dtype for a in prepared.kernel_arguments if isinstance(a, Tensor)]
    assert torch.float64 not in dtypes


@by_stage
def test_slopes_of_zero_are_no_slopes(stage: str) -> None:
    tensors = arguments(problem())
    outs = []
    for slopes in (None, torch.zeros(4)):
        prepared = PREPARE[stage](**{**tensors, "alibi_slopes": slopes})
        prepared.simulate()
        outs.append(prepared.out)
    assert torch.equal(*outs)


@by_stage
@pytest.mark.parametrize("num_threads", [64, 256])
@pytest.mark.parametrize(
    "case",
    [
        "gqa",
        "float16",
        "drifting_over_lanes_and_warps",
        "alibi_block_size_8",
        "strided_q_float16",
        "tail",
    ],
)
def test_other_numbers_of_threads_give_the_oracles_output(
    stage: str, num_threads: int, case: str
) -> None:
    def function(*tensors: object) -> Tensor:
        prepared = PREPARE[stage](*tensors, num_threads=num_threads)
        assert prepared.geometry.num_threads == num_threads
        prepared.simulate()
        return prepared.out

    result, _ = judge(stage_trial(STAGES[stage], f"decode/{case}"), function)
    assert result.passed, result.report()


@by_stage
def test_a_geometry_has_one_kernel(stage: str) -> None:
    """Compiling takes a second: a second call must not compile again."""
    first, again = (PREPARE[stage](**arguments(problem(seed=seed))) for seed in (0, 1))
    assert first.kernel is again.kernel


@by_stage
@pytest.mark.parametrize(
    "changes",
    [
        {"head_size": 64},
        {"block_size": 8},
        {"dtype": torch.float16},
        {"num_kv_heads": 4},
    ],
)
def test_another_geometry_has_another_kernel(stage: str, changes: dict) -> None:
    first, other = (PREPARE[stage](**arguments(problem(**c))) for c in ({}, changes))
    assert first.kernel is not other.kernel


def other_loads(geometry: Geometry) -> Loads:
    return element_loads(geometry)


@pytest.mark.cuda_v1
def test_other_loads_are_another_kernel() -> None:
    tensors = arguments(problem())
    assert prepare_v1(**tensors).kernel is not prepare_v1(**tensors, loads=other_loads).kernel


def loads_of_twice_v(geometry: Geometry) -> Loads:
    loads, V_VEC_SIZE = element_loads(geometry), geometry.V_VEC_SIZE
    load_once = loads.load_v

    @cuda.jit(device=True)
    def load_v(v_vec, v_cache, offset):
        load_once(v_vec, v_cache, offset)
        for e in range(V_VEC_SIZE):
            v_vec[e] *= float32(2)

    return loads._replace(load_v=load_v)


@pytest.mark.cuda_v1
def test_the_loads_that_are_given_are_used() -> None:
    outs = []
    for loads in (element_loads, loads_of_twice_v):
        prepared = prepare_v1(**arguments(problem()), loads=loads)
        prepared.simulate()
        outs.append(prepared.out)
    assert torch.equal(outs[1], 2 * outs[0])


def grid_of(prepare: Callable) -> tuple[int, int, int]:
    return prepare(**arguments(problem(num_heads=6, num_kv_heads=3))).grid


@by_stage
def test_the_grid_is_heads_by_sequences(stage: str) -> None:
    assert grid_of(PREPARE[stage]) == (6, 2, 1)


@pytest.mark.cuda_v1
@pytest.mark.parametrize(("num_kv_heads", "ratio"), [(6, 1), (3, 2), (1, 6)])
def test_the_ratio_of_heads_is_a_constant_of_the_kernel(num_kv_heads: int, ratio: int) -> None:
    tensors = arguments(problem(num_heads=6, num_kv_heads=num_kv_heads))
    assert prepare_v1(**tensors).geometry.num_queries_per_kv == ratio


@pytest.mark.cuda_v1
@pytest.mark.parametrize("case", ["worked_example", "tail"])
def test_shared_bytes_are_those_of_the_longest_sequence(case: str) -> None:
    paged = CASES[f"decode/{case}"].paged("vllm")
    prepared = prepare_v1(*values(paged))
    longest = int(np.max(paged.seq_lens.numpy()))
    assert prepared.shared_bytes == prepared.geometry.dynamic_shared_bytes(longest)


@pytest.mark.cuda_v1
@pytest.mark.parametrize("num_threads", [64, 128, 256])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_size": 80, "dtype": torch.float16},
        {"head_size": 120, "dtype": torch.bfloat16, "block_size": 8},
        {"head_size": 256, "block_size": 32},
    ],
    ids=str,
)
def test_static_shared_bytes_are_those_that_the_kernel_allocates(
    changes: dict, num_threads: int
) -> None:
    prepared = prepare_v1(**arguments(problem(seq_lens=(9,), **changes)), num_threads=num_threads)
    arrays = [a for a in prepared.simulate(trace=0).trace.arrays if a.space == "shared"]
    num_bytes = {a.name: math.prod(a.shape) * a.dtype.itemsize for a in arrays}
    assert num_bytes.pop("shared_mem") == prepared.shared_bytes
    assert sum(num_bytes.values()) == prepared.geometry.static_shared_bytes
