"""Numba compiles the paged kernels for real GPUs, and what comes out is what one hopes for."""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.compiled import (
    CAPABILITIES,
    Capability,
    Compiled,
    compiled,
    naive_signature,
    reduce_signature,
    v1_signature,
)
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES, NUM_THREADS, Geometry
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.vectors import vector_loads

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
# In blocks of 32 a thread has a whole key. The loops over 192 float32 or 256 elements are too
# long for the compiler to unroll: k_vecs or accs lie in local memory. Of all sizes and dtypes with
# 128 threads on sm_90, these are the only ones.
NOT_IN_REGISTERS = {(192, 32, F32), (256, 32, F32), (256, 32, F16), (256, 32, BF16)}
# With vector loads there is less to unroll.
NOT_IN_REGISTERS_AS_VECTORS = {(256, 32, F32), (256, 32, F16), (256, 32, BF16)}


def short(geometry: Geometry) -> str:
    dtype = str(geometry.dtype).removeprefix("torch.")
    name = f"{dtype}-head{geometry.head_size}-bs{geometry.block_size}-t{geometry.num_threads}"
    name += f"-p{geometry.partition_size}" * (geometry.partition_size > 0)
    return name + f"-gqa{geometry.num_queries_per_kv}" * (geometry.num_queries_per_kv > 1)


def complaints(
    build: Compiled,
    geometry: Geometry,
    registers: int | None,
    not_in_registers: set[tuple] = NOT_IN_REGISTERS,
) -> list[str]:
    """What is wrong with the machine code, in words. registers: at most so many; None: any."""
    found = []
    if build.num_doubles:
        found.append(f"{build.num_doubles} times .f64: is there a bare 1.0, or uint64 with int64?")
    if build.num_exact:
        found.append(f"{build.num_exact} exact divisions: is fastmath missing?")
    sizes = geometry.head_size, geometry.block_size, geometry.dtype
    local = build.num_local, build.stack_bytes, build.spill_bytes
    if any(local) and sizes not in not_in_registers:
        found.append("{} loads and stores of local memory, {} bytes, {} spilled".format(*local))
    if registers is not None and build.registers > registers:
        found.append(f"{build.registers} registers: are indices signed that should not be?")
    return found


def say(record: Callable, build: Compiled, capability: Capability, what: str) -> None:
    """For the summary at the end of a test run; see conftest.py."""
    major, minor = capability
    spilled = f", {build.stack_bytes} bytes of stack" if build.stack_bytes else ""
    record("registers", f"{what} sm_{major}{minor}: {build.registers} registers{spilled}")


@pytest.mark.cuda_v1
@pytest.mark.parametrize(
    ("geometry", "capability"),
    [
        pytest.param(
            geometry,
            (major, minor),
            id=f"{short(geometry)}-sm_{major}{minor}",
        )
        for geometry in GEOMETRIES
        for major, minor in CAPABILITIES
    ],
)
def test_v1_compiles_to_float32_in_registers(
    geometry: Geometry, capability: Capability, record_property: Callable
) -> None:
    build = compiled(paged_attention(geometry), v1_signature(geometry), capability)
    say(record_property, build, capability, short(geometry))
    is_reference = (geometry, capability) == (REFERENCE, (9, 0))
    found = complaints(build, geometry, REGISTERS if is_reference else None)
    assert not found, found
    sizes = geometry.head_size, geometry.block_size, geometry.dtype
    if sizes in NOT_IN_REGISTERS:
        assert build.num_local > 0, "it fits into registers now: take it off NOT_IN_REGISTERS"


@pytest.mark.cuda_v1_vector
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=short)
def test_vector_loads_compile_to_wide_loads(geometry: Geometry, record_property: Callable) -> None:
    build = compiled(paged_attention(geometry, vector_loads), v1_signature(geometry), (9, 0))
    say(record_property, build, (9, 0), f"vectors {short(geometry)}")
    registers = REGISTERS if geometry == REFERENCE else None
    found = complaints(build, geometry, registers, NOT_IN_REGISTERS_AS_VECTORS)
    assert not found, found
    sizes = geometry.head_size, geometry.block_size, geometry.dtype
    if sizes in NOT_IN_REGISTERS_AS_VECTORS:
        assert build.num_local > 0, "it fits into registers now: take it off the list"
    # Every vec of K and one of q, every row of V: no element of them is loaded alone. (float32 in
    # blocks of 8 has vecs of one element, and the lengths and tables are 4 bytes too.)
    wide = {}
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for width, count in ((vec_bytes, geometry.NUM_VECS_PER_THREAD + 1), (16, rows(geometry))):
        wide[width] = wide.get(width, 0) + count
    loads = {width: n for (space, width), n in build.loads.items() if space == "global"}
    assert all(loads.get(width, 0) >= count for width, count in wide.items()), (loads, wide)
    assert 2 not in loads


def rows(geometry: Geometry) -> int:
    """Loads of V in the text: 1, where the loop over the rows stays a loop."""
    sizes = geometry.head_size, geometry.block_size, geometry.dtype
    return 1 if sizes in NOT_IN_REGISTERS_AS_VECTORS else geometry.NUM_ROWS_PER_THREAD


@pytest.mark.cuda_v1_vector
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_the_reference_has_as_many_wide_loads_as_the_original(capability: Capability) -> None:
    kernel = paged_attention(REFERENCE, vector_loads)
    build = compiled(kernel, v1_signature(REFERENCE), capability)
    assert build.loads["global", 8] >= 17
    assert build.loads["global", 16] >= 8
    # q from shared memory by vecs of 8 bytes, the weights by 16
    assert build.loads["shared", 8] >= 16
    assert build.loads["shared", 16] >= 2
    assert build.spill_bytes == build.stack_bytes == 0


@pytest.mark.cuda_v2
@pytest.mark.parametrize("geometry", [g for g in GEOMETRIES if g.partition_size], ids=short)
def test_reduce_compiles_to_float32_in_registers(
    geometry: Geometry, record_property: Callable
) -> None:
    build = compiled(reduce(geometry), reduce_signature(geometry), (9, 0))
    say(record_property, build, (9, 0), f"reduce {short(geometry)}")
    found = complaints(build, geometry, None)
    assert not found, found


@pytest.mark.cuda_naive
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
@pytest.mark.parametrize(
    "geometry", [REFERENCE, Geometry(120, 8, BF16, num_queries_per_kv=4)], ids=short
)
def test_naive_compiles_to_float32_in_registers(
    geometry: Geometry, capability: Capability, record_property: Callable
) -> None:
    build = compiled(naive_kernel(geometry), naive_signature(geometry), capability)
    say(record_property, build, capability, f"naive {short(geometry)}")
    found = complaints(build, geometry, None)
    assert not found, found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("head_size", HEAD_SIZES),
        ("block_size", BLOCK_SIZES),
        ("dtype", DTYPES),
        ("num_threads", NUM_THREADS),
        ("partition_size", (0, 512)),
        ("num_queries_per_kv", (1, 4, 8)),
    ],
)
def test_the_geometries_have_every_value_of(name: str, values: tuple) -> None:
    assert {getattr(geometry, name) for geometry in GEOMETRIES} == set(values)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("inv_sum = float32(1) / (", "inv_sum = 1.0 / (", ".f64"),
        ("uint32(cuda.threadIdx.x)", "cuda.threadIdx.x", "registers"),
        (
            "        for i in range(NUM_ROWS_PER_THREAD):\n            acc = accs[i]",
            "        for i in range(min(seq_len, NUM_ROWS_PER_THREAD)):\n            acc = accs[i]",
            "local memory",
        ),
        ("@cuda.jit(fastmath=True)", "@cuda.jit", "fastmath"),
    ],
)
def test_what_makes_a_kernel_slow_is_seen(old: str, new: str, complaint: str) -> None:
    must_complain(changed(paged_attention, old, new)(REFERENCE), complaint)


def must_complain(kernel: Callable, complaint: str) -> None:
    """There is one complaint of the kernel for REFERENCE, with this word in it."""
    build = compiled(kernel, v1_signature(REFERENCE), (9, 0))
    found = complaints(build, REFERENCE, REGISTERS)
    assert [complaint in one for one in found] == [True], found
