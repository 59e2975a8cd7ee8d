"""NVRTC compiles paged_attention.cu, and it is launched with the arguments of the Numba kernel."""

import dataclasses
from collections.abc import Callable
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cpp_on_the_host import run_with
from kernel_inputs import arguments, problem
from test_paged_kernel_compiles import say, short

from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.kernels import cpp_twin
from pa_tutorial.kernels.compiled import CAPABILITIES, Capability, arch, linked
from pa_tutorial.kernels.cpp_twin import NAME, compile_twin, for_cpp, twin_kernel, twin_lto_ir
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES, NUM_THREADS, Geometry
from pa_tutorial.kernels.launch import prepare_v1

pytestmark = pytest.mark.needs("numba-cuda")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(128, 16, F16)
GEOMETRIES = (
    REFERENCE,
    Geometry(32, 8, F32, num_threads=64),
    Geometry(64, 16, F32, num_queries_per_kv=8),
    Geometry(80, 8, F16, num_threads=256),
    Geometry(96, 32, BF16),
    Geometry(112, 16, BF16, num_threads=64),
    Geometry(120, 16, F16),
    Geometry(192, 16, BF16, partition_size=512, num_queries_per_kv=4),
    Geometry(256, 16, F16, num_threads=256),
    Geometry(256, 32, F32),
)


@pytest.mark.parametrize(
    ("geometry", "capability"),
    list(zip(GEOMETRIES, cycle(CAPABILITIES), strict=False)),
    ids=lambda value: short(value) if isinstance(value, Geometry) else arch(value),
)
def test_the_twin_compiles_to_float32_in_wide_loads(
    geometry: Geometry, capability: Capability, record_property: Callable
) -> None:
    build = compile_twin(geometry, capability)
    say(record_property, build, capability, f"C++ {short(geometry)}")
    assert (build.num_doubles, build.num_exact) == (0, 0)
    assert build.num_local == 0, "an index of k_vecs or accs is not a constant"
    widths = {width for space, width in build.loads if space == "global"}
    assert widths == {4, 16, geometry.VEC_SIZE * geometry.ITEMSIZE}
    assert not {space for space, _ in build.loads} & {"generic", "local"}


def test_the_twin_reads_whole_vecs_without_spilling(record_property: Callable) -> None:
    build = compile_twin(REFERENCE, (9, 0))
    say(record_property, build, (9, 0), f"C++ {short(REFERENCE)}")
    assert build.loads["global", 8] >= 1 + REFERENCE.NUM_VECS_PER_THREAD
    assert build.loads["global", 16] == REFERENCE.NUM_ROWS_PER_THREAD
    assert build.loads["shared", 8] == REFERENCE.NUM_VECS_PER_THREAD
    assert (build.stack_bytes, build.spill_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("head_size", {*HEAD_SIZES}),
        ("block_size", {*BLOCK_SIZES}),
        ("dtype", {*DTYPES}),
        ("num_threads", {*NUM_THREADS}),
    ],
)
def test_the_geometries_have_every_value_of(name: str, every: set) -> None:
    assert {getattr(geometry, name) for geometry in GEOMETRIES} == every


def test_the_kernel_is_found_by_its_name() -> None:
    cubin, _ = linked(twin_lto_ir(REFERENCE, (9, 0)), (9, 0), "cubin")
    assert b"\0" + NAME.encode() + b"\0" in cubin


def test_cuda_core_has_what_a_launch_asks_for() -> None:
    from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch

    for owner, name in (
        (Device, "set_current"),
        (Device, "compute_capability"),
        (ObjectCode, "from_cubin"),
        (ObjectCode, "get_kernel"),
        (Stream, "from_handle"),
    ):
        assert hasattr(owner, name)
    config = LaunchConfig(grid=(4, 2, 1), block=128, shmem_size=96)
    assert (config.grid, config.block, config.shmem_size) == ((4, 2, 1), (128, 1, 1), 96)
    assert callable(launch)


@pytest.mark.needs("a C++ compiler")
def test_a_launch_gives_the_kernel_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda.core's launch is a stand-in: it runs the kernel on the CPU, with the bytes it is given.

    What makes them of the arguments is cuda.core's own.
    """
    import cuda.core
    from cuda.core._kernel_arg_handler import ParamHolder

    case = problem(dtype=BF16, strided_q=True, alibi=True)
    prepared = prepare_v1(**arguments(case), num_threads=64)
    prepared = dataclasses.replace(prepared, kernel=twin_kernel(prepared.geometry))
    done = []

    def launch(stream: str, config: object, kernel: Geometry, *passed: object) -> None:
        done.append((stream, config.block, config.shmem_size, kernel))
        holder = ParamHolder(passed)
        run_with(kernel, config.grid, config.block[0], config.shmem_size, holder.ptr)

    device = SimpleNamespace(
        set_current=lambda: done.append("current"),
        compute_capability=SimpleNamespace(major=9, minor=0),
    )
    monkeypatch.setattr(cuda.core, "Device", lambda: device)
    monkeypatch.setattr(cuda.core, "Stream", SimpleNamespace(from_handle="stream {}".format))
    monkeypatch.setattr(cuda.core, "launch", launch)
    monkeypatch.setattr(cpp_twin, "loaded", lambda geometry, capability: geometry)

    prepared.kernel[prepared.grid, 64, 7, prepared.shared_bytes](*prepared.kernel_arguments)
    assert done == ["current", ("stream 7", (64, 1, 1), prepared.shared_bytes, prepared.geometry)]
    errors = relative_errors(to_float64(prepared.out), case.expected()["out"])
    assert errors.max() < torch.finfo(BF16).eps / 2 + 2e-6


def test_arrays_of_other_packages_are_passed_by_their_address_too() -> None:
    """As Numba's, which `make gpu` has."""
    array = SimpleNamespace(__cuda_array_interface__={"data": (4096, False)}, shape=(2, 5))
    assert for_cpp(*[array] * 6, 0.5, *[array] * 3, 128, 2**40, 64) == [
        *[4096] * 6,
        np.float32(0.5),
        *[4096] * 3,
        *(128, 2**40, 64),
        np.int32(5),
    ]


@pytest.mark.parametrize("name", ["block_tables", "seq_lens", "alibi_slopes"])
def test_arrays_with_gaps_are_refused_where_there_is_no_stride(name: str) -> None:
    """The kernel in Python reads them right; this one is told an address only."""
    prepared = prepare_v1(**arguments(problem(dtype=BF16)))
    array = prepared.arguments[name]
    prepared.arguments[name] = torch.stack([array, array], dim=-1)[..., 0]
    with pytest.raises(ValueError, match=rf"^{name} is an array with gaps; it must be contiguous"):
        for_cpp(*prepared.kernel_arguments)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_a_cache_that_is_not_aligned_is_refused(name: str) -> None:
    prepared = prepare_v1(**arguments(problem(dtype=BF16)))
    prepared.arguments[name] = prepared.arguments[name][4:]
    with pytest.raises(ValueError, match=rf"^{name} is 8 bytes past a multiple of 16"):
        for_cpp(*prepared.kernel_arguments)
