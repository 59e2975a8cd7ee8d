"""Our Triton kernels as Triton compiles them: beside the reference, and what their code is like.

Which registers Triton takes differs between its versions: no number of them stands here.
"""

from __future__ import annotations

import pytest
import torch

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.compiled.report import CAPABILITIES, Capability, arch, loads_of
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.kernels.triton.backend import TritonCall, TritonLaunch, triton_backend, why_absent
from pa_tutorial.paging.quantization import FLOAT8
from simt.gpus import WARP_SIZE
from simt.ptx import PtxReport, parse, run_ptx
from tests.kernels.kernel_inputs import (
    float8_step,
    prepare,
    require_float8_right,
    require_right,
    step,
)

if why_absent() is None:
    from triton.runtime import driver

    from pa_tutorial.kernels.triton.compiled import TritonCompiled, compile_call

pytestmark = pytest.mark.triton
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
OUTPUTS = ("max_logits_ptr", "exp_sums_ptr", "tmp_out_ptr")  # of the first kernel


def run_text(text: str, call: TritonCall, shared_bytes: int, *outputs: str) -> PtxReport:
    """Triton adds pointers to scratch memory at the end, which these kernels don't use; None, the
    scale of a cache that isn't 8-bit, is no argument. Races aren't looked for: where a tile has
    fewer items than a program threads, several threads write the same number to the same place.
    """
    passed = {name: value for name, value in call.arguments.items() if value is not None}
    values = [
        as_stored(value) if isinstance(value, torch.Tensor) else value for value in passed.values()
    ]
    values += [0] * (len(parse(text).parameters) - len(values))
    unwritten = [f"argument {n}" for n, name in enumerate(passed) if name in outputs]
    return run_ptx(
        text, call.grid, WARP_SIZE * call.num_warps, *values, shared_bytes=shared_bytes,
        unwritten=unwritten, checks=("memory", "init", "sync"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "cached", "capability"),
    [
        (F16, None, (9, 0)),
        (BF16, None, (8, 0)),
        (F32, None, (8, 0)),
        (F16, FLOAT8[0], (9, 0)),
        (F32, FLOAT8[1], (8, 0)),
    ],
    ids=str,
)
def test_the_compiled_kernels_are_right(
    dtype: torch.dtype, cached: torch.dtype | None, capability: Capability
) -> None:
    paged = float8_step(dtype, cached, "plain") if cached else DecodeStep(**step(dtype=dtype))
    launch = triton_backend.prepare(paged, partition_size=16, tile_size=16)
    first, second = (compile_call(call, capability) for call in (launch.partitions, launch.reduce))
    report = run_text(first.ptx, launch.partitions, first.shared_bytes, *OUTPUTS)
    run_text(second.ptx, launch.reduce, second.shared_bytes, "out_ptr")
    if cached:
        require_float8_right(launch.out, paged)
    else:
        require_right(launch.out, vars(paged))
        assert report.issued["copy"] > 0
        assert (report.issued["matrix"] > 0) == (dtype != F32)


# What the code is like ---------------------------------------------------------------------------

SHARED_OF_AN_A100 = 163 * 1024  # bytes, of one program
# (head size, dtype, query heads to a KV head): about a second each, the first time
GEOMETRIES = ((128, F16, 1), (80, BF16, 5), (8, F16, 8), (512, F32, 8))
SCALAR_BYTES = 4  # lengths, block numbers, slopes


def prepared(head_size: int, dtype: torch.dtype, group: int) -> TritonLaunch:
    """A step of one sequence."""
    sizes = {"seq_lens": (20,), "num_heads": 2 * group, "num_kv_heads": 2, "block_size": 16}
    return prepare("triton", **step(head_size=head_size, dtype=dtype, **sizes))


def complaints(build: TritonCompiled, dtype: torch.dtype) -> list[str]:
    """What is wrong with the machine code of the first kernel, in words."""
    found = []
    narrow = {size for size in build.copies if size not in (SCALAR_BYTES, 16)}
    if narrow or build.copies.get(16, 0) < 2:
        found.append(f"K and V come in copies of {build.copies} bytes, not 16 each")
    if dtype != F32 and not build.count("mma.sync") + build.count("wgmma"):
        found.append("no tensor core: q and k are multiplied one by one")
    if dtype == F32 and (build.count("mma") or "tf32" in build.ptx):
        found.append("float32 is rounded to 10 bits; is input_precision missing?")
    if ".f64" in build.ptx:
        found.append(".f64: is a number a float64?")
    if build.shared_bytes > SHARED_OF_AN_A100:
        found.append(f"{build.shared_bytes:,} bytes of shared memory")
    return found


@pytest.mark.rest(keep=["(128, *-sm_90", "(512, *-sm_90"])
@pytest.mark.parametrize("capability", CAPABILITIES, ids=arch)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_wide_copies_tensor_cores_and_no_rounding(
    geometry: tuple[int, torch.dtype, int], capability: Capability
) -> None:
    build = compile_call(prepared(*geometry).partitions, capability)
    assert complaints(build, geometry[1]) == []
    assert f".target {arch(capability)}" in build.ptx
    if geometry == (128, F16, 1):
        assert build.stack_bytes == 0


@pytest.mark.parametrize("cached", FLOAT8, ids=str)
def test_an_8_bit_cache_comes_in_wide_copies_too(cached: torch.dtype) -> None:
    """The default tile has more tokens than a 16-bit cache's, of as many bytes."""
    launch = triton_backend.prepare(float8_step(F16, cached, "plain", head_size=128))
    assert launch.partitions.constants["TILE_SIZE"] == 64
    build = compile_call(launch.partitions, (8, 0))
    assert complaints(build, F16) == []
    assert build.stack_bytes == 0


def test_the_second_kernel_is_small_and_triton_asks_for_the_gpu_that_is_there() -> None:
    """The interpreter lets a name change its type in a loop; the compiler does not."""
    before = type(driver).active
    build = compile_call(prepared(128, F16, 8).reduce)
    assert type(driver).active is before
    assert build.stack_bytes == 0
    assert ".f64" not in build.ptx
    assert loads_of(build.ptx)["global", 16] > 0  # tmp_out
