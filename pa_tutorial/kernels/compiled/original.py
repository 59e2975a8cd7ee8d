"""vLLM's own v1 and v2 beside ours, all compiled and run without a GPU.

`python -m pa_tutorial.bench.original` makes the tables.

vLLM's text isn't part of this repository. Its last source package with these kernels is 0.24.0
(vllm-0.24.0.tar.gz on PyPI, of June 2026); nvcc is needed to compile it.
Source: vLLM, csrc/attention/attention_kernels.cuh; paged_attention_v1.cu and v2.cu.
"""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.compiled.backend import (
    CHECKS,
    Compiled,
    intermediates_of_paged,
    intermediates_of_v2,
)
from pa_tutorial.kernels.cuda_backends import v1_backend, v1_vector_backend, v2_backend
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.tracebacks import ShortInNotebooks
from simt.ptx.launching import PtxReport, run_ptx
from simt.ptx.machine import Size
from simt.tables import Table
from simt.traffic import costs

FILE = Path(__file__).with_name("original.json")
KERNELS = "attention_kernels.cuh"
FOLDERS = ("csrc/attention", "csrc/libtorch_stable/attention")  # since 0.23.0 in the second
TYPES = {torch.float16: "uint16_t", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}
NUM_THREADS, PARTITION_SIZE = 128, 64
# The kernels include these for their launches only.
UNUSED_HEADERS = (
    *("torch/all.h", "ATen/cuda/CUDAContext.h", "c10/cuda/CUDAGuard.h"),
    *("torch_utils.h", "torch/headeronly/core/ScalarType.h"),
)
PROGRAM = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cstdint>
#include <string>
#define TORCH_UTILS_CHECK(...)  // of a function on the CPU
#include "{kernels}"
constexpr auto AUTO = vllm::Fp8KVCacheDataType::kAuto;
void* kernels[] = {{
    (void*)&vllm::paged_attention_v1_kernel<
        {type}, {type}, {head_size}, {block_size}, {num_threads}, AUTO, false>,
    (void*)&vllm::paged_attention_v2_kernel<
        {type}, {type}, {head_size}, {block_size}, {num_threads}, AUTO, false, {partition_size}>,
    (void*)&vllm::paged_attention_v2_reduce_kernel<
        {type}, {head_size}, {num_threads}, {partition_size}>,
}};
"""
EXPLAINED = """
Off: relative to exact numbers; those of v2 are of whole sequences, with the reduce kernel.
"exact, rounded" is the least that an output in its type can be off.
q, K, V: transactions x bytes per lane. shared: transactions. As compiled: warp instructions.
Where vLLM's outputs are further off, it's because it keeps a partial sum of q·k for each element of
a vec, and multiplies weights and V in V's type; ours does both in float32. vLLM's bfloat16 vecs are
made of pairs, so its kernel loads 4 bytes at a time. Its reduce kernel waits at 4 barriers, ours at
2, which are enough; it computes indices in 32 bits, ours in 64, which takes more instructions."""


class NoOriginal(ShortInNotebooks, RuntimeError):
    """vLLM's kernel can't be compiled here; the message is one line."""


def compiled_original(path: Path, step: DecodeStep, block_size: int) -> str:
    """The PTX of vLLM's v1, v2 and reduce kernels for the sizes of a step. Raises NoOriginal."""
    places = [(path / folder / KERNELS).resolve() for folder in FOLDERS]
    kernels = next((place for place in places if place.is_file()), None)
    if kernels is None:
        where = " or ".join(FOLDERS)
        raise NoOriginal(
            f"{path} has no {KERNELS} in {where}: is it vLLM's source, up to version 0.24.0?"
        )
    if shutil.which("nvcc") is None:
        raise NoOriginal("nvcc, the compiler of NVIDIA's CUDA toolkit, isn't on the PATH")
    sizes = {"head_size": step.q.shape[-1], "block_size": block_size, "num_threads": NUM_THREADS}
    sizes |= {"partition_size": PARTITION_SIZE, "type": TYPES[step.q.dtype]}
    program = PROGRAM.format(kernels=kernels, **sizes)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for header in UNUSED_HEADERS:
            (folder / header).parent.mkdir(parents=True, exist_ok=True)
            (folder / header).touch()
        (folder / "kernels.cu").write_text(program, encoding="utf-8")
        command = ["nvcc", "-ptx", "-arch=sm_80", "-std=c++17", "-lineinfo", "-w", f"-I{folder}"]
        command += [str(folder / "kernels.cu"), "-o", str(folder / "kernels.ptx")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            error = next((x for x in done.stderr.splitlines() if "error" in x), "no reason given")
            raise NoOriginal(f"nvcc can't compile {KERNELS}: {error}")
        return (folder / "kernels.ptx").read_text(encoding="utf-8")


def run_original(text: str, step: DecodeStep, block_size: int) -> tuple[Tensor, PtxReport]:
    """vLLM's v1 on a step, in vLLM's layout."""
    out = torch.full_like(step.q, torch.nan)
    grid = *step.q.shape[1::-1], 1
    logits = -(-int(step.seq_lens.max()) // block_size) * block_size
    given = as_stored(out), *_given(step)
    report = _run(text, "v1_kernel", grid, *given, shared=_shared(logits, step), num_outs=1)
    return out, report


def run_original_v2(text: str, step: DecodeStep) -> tuple[dict[str, Tensor], PtxReport, PtxReport]:
    """vLLM's v2 and reduce kernels on a step: `out`, and what the second reads of the first."""
    num_seqs, num_heads, head_size = step.q.shape
    num_partitions = -(-int(step.seq_lens.max()) // PARTITION_SIZE)
    sums, largest = (torch.full((num_seqs, num_heads, num_partitions), torch.nan) for _ in "sl")
    parts = torch.full((*sums.shape, head_size), torch.nan, dtype=step.q.dtype)
    out, partials = torch.full_like(step.q, torch.nan), (sums, largest, as_stored(parts))
    grid, shared = (num_heads, num_seqs, num_partitions), _shared(PARTITION_SIZE, step)
    first = _run(text, "v2_kernel", grid, *partials, *_given(step), shared=shared, num_outs=3)
    given = as_stored(out), *partials, step.seq_lens, num_partitions
    grid, shared = (num_heads, num_seqs, 1), 8 * num_partitions
    second = _run(text, "v2_reduce_kernel", grid, *given, shared=shared, num_outs=1)
    return {"out": out, "max_logits": largest, "exp_sums": sums}, first, second


def _given(step: DecodeStep) -> tuple:
    """The arguments that v1 and v2 share, from q on."""
    stored = map(as_stored, (step.q, step.k_cache, step.v_cache))
    strides = step.q.stride(0), step.k_cache.stride(0), step.k_cache.stride(1)
    slopes = 0 if step.alibi_slopes is None else step.alibi_slopes
    ones = torch.ones(1), torch.ones(1)  # the scales of an 8-bit cache
    tables, block_sparse = step.block_tables, (0, 0, 0, 0, 0)
    sizes = step.k_cache.shape[1], step.scale, tables, step.seq_lens, tables.shape[1], slopes
    return *stored, *sizes, *strides, *ones, *block_sparse


def _shared(logits: int, step: DecodeStep) -> int:
    return 4 * max(logits, NUM_THREADS // 32 // 2 * step.q.shape[-1])


def _run(text: str, name: str, grid: Size, *args: object, shared: int, num_outs: int) -> PtxReport:
    outs = tuple(f"argument {number}" for number in range(num_outs))
    options = {"shared_bytes": shared, "checks": CHECKS, "unwritten": outs, "name": name}
    options["keeps_shared"] = True
    return run_ptx(text, grid, NUM_THREADS, *args, **options)


REDUCED = 1, 3  # the barriers behind which its reduce kernel has the warps' maxima, and sums
QUANTITIES = {
    "scores": "qk",
    "maximum": "qk_max",
    "sum": "exp_sum",
    "weights": "logits",
    "output": "out",
}
# The arguments of our kernels, and of vLLM's, that are q, K and V.
OURS = ("q", "k_cache", "v_cache")
V1 = ("argument 1", "argument 2", "argument 3")
V2 = ("argument 3", "argument 4", "argument 5")


def counts(report: PtxReport, arguments: Sequence[str] = ()) -> dict[str, str]:
    """For each array transactions x bytes of a lane and sectors, then counts of instructions.

    arguments  that are q, K and V; the reduce kernel has none of them
    """
    found = dict.fromkeys(("q", "K's loads in the PTX", "K", "V"), "")
    for letter, argument in zip("qKV", arguments, strict=False):
        part = report.trace.only(array=argument)
        if letter == "K":
            places = sorted({*part.records.place.tolist()})
            loads = Counter(".".join(report.kernel.instructions[n].words) for n in places)
            found["K's loads in the PTX"] = ", ".join(f"{n} {load}" for load, n in loads.items())
        widths = "+".join(str(n) for n in sorted(set(part.records.num_bytes.tolist())))
        sectors = int(costs(part)["sectors"].sum())
        found[letter] = f"{part.num_instructions:,} x {widths} B, {sectors:,} sectors"
    shared = report.trace.only(space="shared")
    wavefronts = int(costs(shared)["wavefronts"].sum())
    found["shared"] = f"{shared.num_instructions:,}, {wavefronts:,} wavefronts"
    found |= {f"{kind}s": f"{report.issued[kind]:,}" for kind in ("barrier", "shuffle")}
    return found | {"as compiled": f"{report.num_issued:,}"}


def compare(path: Path, title: str, step: DecodeStep, expected: Mapping[str, np.ndarray]) -> Table:
    """Our kernels and vLLM's on one step, whose exact numbers are known. Raises NoOriginal."""
    text = compiled_original(path, step, step.block_size)
    by_element = Compiled(v1_backend).prepare(step)
    v1 = Compiled(v1_vector_backend).prepare(step)
    v2 = Compiled(v2_backend).prepare(step, partition_size=PARTITION_SIZE)
    ours_by_element, ours_v1, ours_v2 = by_element.probe(), v1.probe(), v2.probe()
    out, report = run_original(text, step, step.block_size)
    theirs_v1 = intermediates_of_paged(report, v1.launch) | {"out": out}
    made, first, second = run_original_v2(text, step)
    merged = made["max_logits"], made["exp_sums"]
    theirs_v2 = made | intermediates_of_v2(first, second, v2.launch, *merged, REDUCED)
    rows = []
    counted = counts(first, V2)
    rounded = torch.as_tensor(expected["out"]).to(step.q.dtype)
    runs = (
        ("by element, ours", ours_by_element, counts(by_element.reports[0], OURS)),
        ("v1, ours", ours_v1, counts(v1.reports[0], OURS)),
        ("v1, vLLM's", theirs_v1, counts(report, V1)),
        ("v2, ours", ours_v2, counts(v2.reports[0], OURS)),
        ("v2, vLLM's", theirs_v2, counted),
        ("reduce, ours", {}, counts(v2.reports[1])),
        ("reduce, vLLM's", {}, counts(second)),
        ("exact, rounded", {"out": rounded}, dict.fromkeys(counted, "")),
    )
    for name, found, cost in runs:
        errors = [error(found.get(each), expected[each]) for each in QUANTITIES.values()]
        rows.append((name, *errors, *cost.values()))
    columns = "kernel", *(f"{name} off" for name in QUANTITIES), *counted
    return Table(title, columns, tuple(rows))


def error(given: Tensor | None, expected: np.ndarray) -> str:
    """The relative error, where both are finite; "" for a quantity that isn't there."""
    if given is None:
        return ""
    exact = torch.as_tensor(expected)
    exists = exact.isfinite()
    return f"{(given.double() - exact)[exists].norm() / exact[exists].norm():.1e}"


def recorded(kernel: str, dtype: torch.dtype, *columns: str) -> Table:
    """What `--record` wrote about our kernel and vLLM's, or some of its columns.

    kernel  "v1" or "v2"
    dtype   of q and the cache

    Raises ValueError for a dtype that vLLM's kernels don't have or another kernel, KeyError for an
    unknown column.
    """
    require(kernel in ("v1", "v2"), "kernel", kernel, '"v1" or "v2"')
    require(dtype in TYPES, "dtype", dtype, f"one of {', '.join(map(str, TYPES))}")
    found = json.loads(FILE.read_text(encoding="utf-8"))[str(dtype)]
    rows = tuple(tuple(row) for row in found["rows"] if row[0].startswith(kernel))
    table = Table(found["title"], tuple(found["columns"]), rows)
    names = "kernel", *(columns or table.columns[1:])
    rows = zip(*(table.column(name) for name in names), strict=True)
    return Table(table.title, names, tuple(rows))
