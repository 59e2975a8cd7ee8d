"""Our Triton kernels as Triton compiles them, beside the reference."""

import pytest
import torch

from pa_tutorial.kernels.compiled.report import Capability
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
    from pa_tutorial.kernels.triton.compiled import compile_call

pytestmark = pytest.mark.triton
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


def run_launch(launch: TritonLaunch, capability: Capability) -> PtxReport:
    """Both kernels as compiled; the report of the first."""
    first, second = (compile_call(call, capability) for call in (launch.partitions, launch.reduce))
    report = run_text(first.ptx, launch.partitions, first.shared_bytes, *OUTPUTS)
    run_text(second.ptx, launch.reduce, second.shared_bytes, "out_ptr")
    return report


@pytest.mark.parametrize(
    ("dtype", "capability"),
    [(torch.float16, (9, 0)), (torch.bfloat16, (8, 0)), (torch.float32, (8, 0))],
    ids=str,
)
def test_the_compiled_kernels_are_right(dtype: torch.dtype, capability: Capability) -> None:
    values = step(dtype=dtype)
    launch = prepare("triton", **values, partition_size=16, tile_size=16)
    report = run_launch(launch, capability)
    require_right(launch.out, values)
    assert report.issued["copy"] > 0
    assert (report.issued["matrix"] > 0) == (dtype != torch.float32)


@pytest.mark.parametrize(
    ("cached", "dtype", "capability"),
    [(FLOAT8[0], torch.float16, (9, 0)), (FLOAT8[1], torch.float32, (8, 0))],
    ids=str,
)
def test_the_compiled_kernels_read_an_8_bit_cache(
    cached: torch.dtype, dtype: torch.dtype, capability: Capability
) -> None:
    paged = float8_step(dtype, cached, "plain")
    launch = triton_backend.prepare(paged, partition_size=16, tile_size=16)
    run_launch(launch, capability)
    require_float8_right(launch.out, paged)
