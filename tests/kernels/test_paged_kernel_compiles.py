"""Numba compiles the kernels of the package for real GPUs, and the code is what one hopes for."""

import re

import pytest
import torch

from pa_tutorial.kernels.compiled.backend import parts_of
from pa_tutorial.kernels.compiled.report import CAPABILITIES, Capability, Compiled, arch, compiled
from pa_tutorial.kernels.cuda_launch import CudaLaunch
from pa_tutorial.kernels.geometry import Geometry
from tests.kernels.kernel_inputs import arguments, prepare, problem

pytestmark = pytest.mark.needs("numba-cuda")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(128, 16, F16)
REGISTERS = 64  # of a thread, for the reference geometry on sm_90; 58 and 52 were measured
# The loops over 192 elements of a whole key are too long for the compiler to unroll: k_vecs or accs
# lie in local memory.
NOT_UNROLLED = Geometry(192, 32, F32)
# Each takes a second or two: these few have every size, type and option at least once.
GEOMETRIES = (
    REFERENCE,
    Geometry(32, 8, F32, num_threads=64),
    Geometry(80, 8, F16, num_threads=256),
    Geometry(112, 32, BF16, num_queries_per_kv=8),
    NOT_UNROLLED,
    Geometry(256, 16, F16, num_threads=256),
)


def parts(stage: str, geometry: Geometry) -> tuple[CudaLaunch, ...]:
    """The launches of a step of this geometry."""
    sizes = {"head_size": geometry.head_size, "block_size": geometry.block_size}
    sizes |= {"num_heads": geometry.num_queries_per_kv, "num_kv_heads": 1}
    case = problem(dtype=geometry.dtype, **sizes)
    return parts_of(prepare(stage, **arguments(case), num_threads=geometry.num_threads))


def complaints(build: Compiled, geometry: Geometry) -> list[str]:
    """What is wrong with the machine code, in words."""
    found = []
    if doubles := build.ptx.count(".f64"):
        found.append(f"{doubles} times .f64: is there a bare 1.0, or uint64 with int64?")
    local = len(re.findall(r"\b(?:ld|st)\.local", build.ptx)), build.stack_bytes, build.spill_bytes
    if any(local) and geometry != NOT_UNROLLED:
        found.append("{} loads and stores of local memory, {} bytes, {} spilled".format(*local))
    if geometry == REFERENCE and build.registers > REGISTERS:
        found.append(f"{build.registers} registers: are indices signed that should not be?")
    return found


@pytest.mark.rest(keep=["geometry0-cuda_naive", "geometry0-cuda_v2"])  # REFERENCE
@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_kernel_compiles_to_float32_in_registers_and_vecs_to_wide_loads(
    geometry: Geometry, stage: str
) -> None:
    builds = [compiled(part.kernel, *part.arguments.values()) for part in parts(stage, geometry)]
    assert not any(complaints(build, geometry) for build in builds)
    if stage in ("cuda_v1_vector", "cuda_v2"):
        loads = builds[0].loads
        rows = 1 if geometry == NOT_UNROLLED else geometry.NUM_ROWS_PER_THREAD  # in the text
        vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
        assert loads["global", vec_bytes] > geometry.NUM_VECS_PER_THREAD, "K, and one of q"
        assert loads["global", 16] >= rows, "every row of V"
        assert ("global", 2) not in loads, "no element is loaded alone"


@pytest.mark.rest("the same for sm_90")
@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v2"])
def test_the_reference_compiles_for_older_gpus(stage: str) -> None:
    for part in parts(stage, REFERENCE):
        build = compiled(part.kernel, *part.arguments.values(), capability=(8, 0))
        assert not complaints(build, REFERENCE)
        assert ".target sm_80" in build.ptx


@pytest.mark.rest(keep=["sm_90"])
@pytest.mark.parametrize("capability", CAPABILITIES, ids=arch)
def test_the_reference_has_as_many_wide_loads_as_the_original(capability: Capability) -> None:
    (part,) = parts("cuda_v1_vector", REFERENCE)
    build = compiled(part.kernel, *part.arguments.values(), capability=capability)
    assert not complaints(build, REFERENCE)
    assert f".target {arch(capability)}" in build.ptx
    # q from shared memory by vecs of 8 bytes, the weights by 16
    least = {("global", 8): 17, ("global", 16): 8, ("shared", 8): 16, ("shared", 16): 2}
    assert all(build.loads[place] >= count for place, count in least.items())
    # A wide load of shared memory needs an array that is aligned to its vecs.
    aligned = [int(n) for n in re.findall(r"\.shared \.align (\d+) \.b8", build.ptx)]
    assert sorted(aligned) == [4, 16, 16], "red_smem, q_vecs, and the dynamic shared memory"
