"""Numba compiles the kernels of the package for real GPUs, and the code is what one hopes for."""

import re

import pytest
import torch

from pa_tutorial.kernels.compiled.report import (
    CAPABILITIES,
    Capability,
    Compiled,
    arch,
    compiled,
)
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.template import made
from pa_tutorial.paging.layouts import DTYPES
from tests.kernels.kernel_inputs import arguments, prepare_naive, prepare_v1, prepare_v2, problem

pytestmark = pytest.mark.needs("numba-cuda")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(128, 16, F16)
REGISTERS = 64  # of a thread, for the reference geometry on sm_90; 58 and 52 were measured

# Each takes a second or two: these few have every size, type and option at least once.
GEOMETRIES = (
    REFERENCE,
    Geometry(128, 16, F16, partition_size=512, num_queries_per_kv=8),
    Geometry(32, 8, F32, num_threads=64),
    Geometry(64, 16, F32, num_queries_per_kv=8),
    Geometry(80, 8, F16, num_threads=256),
    Geometry(96, 32, BF16),
    Geometry(112, 16, BF16, num_threads=64),
    Geometry(120, 16, F16),
    Geometry(128, 8, F16),
    Geometry(128, 32, F32),
    Geometry(192, 16, BF16, partition_size=512, num_queries_per_kv=4),
    Geometry(192, 32, F32),
    Geometry(256, 16, F16, num_threads=256),
    Geometry(256, 32, BF16),
)
# In blocks of 32 a thread has a whole key. The loops over 192 or 256 elements are too long for the
# compiler to unroll, and so are those over 256 float32 in blocks of 16: k_vecs or accs lie in local
# memory. Of all sizes and dtypes with 128 threads on sm_90, these are the only ones (by vec, 192
# float16 fit); only 256 float32 in blocks of 32 spill.
NOT_UNROLLED = [Geometry(n, 32, dtype) for n in (192, 256) for dtype in DTYPES]
NOT_UNROLLED += [Geometry(256, 16, F32)]


def short(geometry: Geometry) -> str:
    dtype = str(geometry.dtype).removeprefix("torch.")
    name = f"{dtype}-head{geometry.head_size}-bs{geometry.block_size}-t{geometry.num_threads}"
    name += f"-p{geometry.partition_size}" * (geometry.partition_size > 0)
    return name + f"-gqa{geometry.num_queries_per_kv}" * (geometry.num_queries_per_kv > 1)


by_capability = pytest.mark.parametrize("capability", CAPABILITIES, ids=arch)


def v1_arguments(dtype: torch.dtype) -> tuple[object, ...]:
    """Of one type, whatever the sizes are: what a launch passes to the kernel."""
    return prepare_v1(**arguments(problem(dtype=dtype))).arguments.values()


def partitions_arguments(dtype: torch.dtype) -> tuple[object, ...]:
    return prepare_v2(**arguments(problem(dtype=dtype))).partitions.arguments.values()


def reduce_arguments(dtype: torch.dtype) -> tuple[object, ...]:
    return prepare_v2(**arguments(problem(dtype=dtype))).reduce.arguments.values()


def complaints(
    build: Compiled, registers: int | None = None, not_unrolled: bool = False
) -> list[str]:
    """What is wrong with the machine code, in words. registers: at most so many; None: any."""
    found = []
    if doubles := build.ptx.count(".f64"):
        found.append(f"{doubles} times .f64: is there a bare 1.0, or uint64 with int64?")
    local = len(re.findall(r"\b(?:ld|st)\.local", build.ptx)), build.stack_bytes, build.spill_bytes
    if not_unrolled and not local[0]:
        found.append("it fits into registers now: take it off NOT_UNROLLED")
    if any(local) and not not_unrolled:
        found.append("{} loads and stores of local memory, {} bytes, {} spilled".format(*local))
    if registers is not None and build.registers > registers:
        found.append(f"{build.registers} registers: are indices signed that should not be?")
    return found


ONE_PART = [g for g in GEOMETRIES if not g.partition_size]
IN_PARTS = [g for g in GEOMETRIES if g.partition_size]


@pytest.mark.rest("the other kernels at the reference geometry")
@pytest.mark.cuda_v1
@by_capability
@pytest.mark.parametrize("geometry", ONE_PART, ids=short)
def test_v1_compiles_to_float32_in_registers(geometry: Geometry, capability: Capability) -> None:
    kernel = made("v1", **geometry.sizes).paged_attention_v1
    build = compiled(kernel, *v1_arguments(geometry.dtype), capability=capability)
    registers = REGISTERS if (geometry, capability) == (REFERENCE, (9, 0)) else None
    assert not complaints(build, registers, geometry in NOT_UNROLLED)


def wide(geometry: Geometry) -> Compiled:
    """v1 with vector loads, or v2's first kernel, for these sizes."""
    if geometry.partition_size:
        kernel = made("v2", **geometry.sizes).paged_attention_v2
        return compiled(kernel, *partitions_arguments(geometry.dtype))
    kernel = made("v1_vector", **geometry.sizes).paged_attention_v1
    return compiled(kernel, *v1_arguments(geometry.dtype))


@pytest.mark.rest("the next test, at the reference geometry")
@pytest.mark.cuda_v1_vector
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=short)
def test_vector_loads_compile_to_wide_loads(geometry: Geometry) -> None:
    build = wide(geometry)
    not_unrolled = geometry in NOT_UNROLLED
    assert not complaints(build, REGISTERS if geometry == REFERENCE else None, not_unrolled)
    rows = 1 if not_unrolled else geometry.NUM_ROWS_PER_THREAD  # in the text
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    assert build.loads["global", vec_bytes] > geometry.NUM_VECS_PER_THREAD, "K, and one of q"
    assert build.loads["global", 16] >= rows, "every row of V"
    assert ("global", 2) not in build.loads, "no element is loaded alone"


@pytest.mark.rest(keep=["sm_90"])
@pytest.mark.cuda_v1_vector
@by_capability
def test_the_reference_has_as_many_wide_loads_as_the_original(capability: Capability) -> None:
    kernel = made("v1_vector", **REFERENCE.sizes).paged_attention_v1
    build = compiled(kernel, *v1_arguments(F16), capability=capability)
    assert f".target {arch(capability)}" in build.ptx
    # q from shared memory by vecs of 8 bytes, the weights by 16
    least = {("global", 8): 17, ("global", 16): 8, ("shared", 8): 16, ("shared", 16): 2}
    assert all(build.loads[place] >= count for place, count in least.items())
    assert build.spill_bytes == build.stack_bytes == 0
    # A wide load of shared memory needs an array that is aligned to its vecs.
    aligned = [int(n) for n in re.findall(r"\.shared \.align (\d+) \.b8", build.ptx)]
    assert sorted(aligned) == [4, 16, 16], "red_smem, q_vecs, and the dynamic shared memory"


@pytest.mark.rest(keep=["float16-head128-*"])
@pytest.mark.cuda_v2
@pytest.mark.parametrize("geometry", IN_PARTS, ids=short)
def test_reduce_compiles_to_float32_in_registers(geometry: Geometry) -> None:
    kernel = made("v2", **geometry.sizes).reduce_partitions
    build = compiled(kernel, *reduce_arguments(geometry.dtype))
    assert not complaints(build)


@pytest.mark.rest(keep=["float16-head128-bs16-t128-sm_90"])
@pytest.mark.cuda_naive
@by_capability
@pytest.mark.parametrize(
    "geometry", [REFERENCE, Geometry(120, 8, BF16, num_queries_per_kv=4)], ids=short
)
def test_naive_compiles_to_float32_in_registers(geometry: Geometry, capability: Capability) -> None:
    inputs = prepare_naive(**arguments(problem(dtype=geometry.dtype))).arguments.values()
    kernel = made("naive", **geometry.sizes).naive_kernel
    build = compiled(kernel, *inputs, capability=capability)
    assert not complaints(build)
