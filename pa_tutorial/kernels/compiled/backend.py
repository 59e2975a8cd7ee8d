"""A backend whose kernels run as they were compiled: it takes the place of a stage in `check`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.backend import Backend, Intermediates
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cuda_launch import CudaLaunch, NaiveLaunch, PartitionedLaunch
from pa_tutorial.kernels.intermediates import shares_of_partitions
from simt import compile_ptx
from simt.compiling import checked_capability
from simt.ptx import PtxFault
from simt.ptx.launching import PtxReport, run_ptx

OLDEST = (7, 5)  # the oldest GPU that the compiler of CUDA 13 knows
CHECKS = ("memory", "init", "sync")  # thread blocks side by side; the simulator looks for races


@dataclass(frozen=True)
class Compiled:
    """One of the CUDA backends, with its kernels compiled for a GPU.

    Its launches need CPU tensors. They show scores, maximum, sum and weights, and in float32 the
    sums of rows; the naive kernel shows its scores.
    """

    backend: Backend
    compute_capability: tuple[int, int] = (8, 0)
    reusable = False

    @property
    def layout(self) -> str:
        return self.backend.layout

    def why_absent(self) -> str | None:
        return self.backend.why_absent()

    def prepare(self, step: DecodeStep, **sizes: int | None) -> "CompiledLaunch":
        require(not step.q.is_cuda, "step.q.device", step.q.device, "on the CPU")
        return CompiledLaunch(self.backend.prepare(step, **sizes), self.compute_capability)


@dataclass
class CompiledLaunch:
    """A decode step whose kernels are compiled and interpreted.

    reports  of the last run, one per kernel
    """

    launch: CudaLaunch | PartitionedLaunch
    compute_capability: tuple[int, int]
    reports: tuple[PtxReport, ...] = ()

    @property
    def out(self) -> Tensor:
        return self.launch.out

    def run(self) -> Tensor:
        reports: list[PtxReport] = []

        def run_part(*args: object, **more: object) -> None:
            more |= {"checks": CHECKS, "compute_capability": self.compute_capability}
            try:
                reports.append(run_ptx(*args, **more, lineinfo=False, keeps_shared=True))
            except PtxFault:
                run_ptx(*args, **more)  # finds it with its line of source
                raise

        for part in parts_of(self.launch):
            threads, arguments = part.geometry.NUM_THREADS, part.arguments.values()
            own = {"shared_bytes": part.shared_bytes, "unwritten": part.unwritten}
            run_part(part.kernel, part.grid, threads, *arguments, **own)
        self.reports = tuple(reports)
        return self.out

    def probe(self) -> Intermediates:
        """Run it; return `out` and what the kernels leave in shared memory on the way to it. The
        sums of rows of V stay in registers. In float32 the output is these sums; otherwise they are
        rounded to it, and only the output can be seen."""
        found = {"out": self.run()}
        if isinstance(self.launch, NaiveLaunch):
            return found | {"qk": by_token(self.reports[0], 0, self.launch)}
        if isinstance(self.launch, PartitionedLaunch):
            merged = self.launch.max_logits, self.launch.exp_sums
            found |= intermediates_of_v2(*self.reports, self.launch, *merged)
        else:
            found |= intermediates_of_paged(self.reports[0], self.launch)
        if self.out.dtype == torch.float32:
            found["accs"] = self.out
        return found


# Barriers by number. The paged kernel's, as in vLLM's, come when all threads have written: q; the
# scores, and the maximum of each warp; the sum of each warp; the weights.
SCORES, SUM, WEIGHTS = 1, 2, 3
REDUCED = 0, 1  # in the reduce kernel
# The halves of red_smem: the maxima of the warps, their sums.
MAXIMA, SUMS = 0, 1


def intermediates_of_paged(report: PtxReport, part: CudaLaunch) -> Intermediates:
    """Of the paged kernel. In v2, qk_max and exp_sum are the first partition's, and the weights of
    each partition have a sum of their own."""
    return {
        "qk": by_token(report, SCORES, part),
        "qk_max": of_warps(report, SCORES, part, MAXIMA, np.max),
        "exp_sum": of_warps(report, SUM, part, SUMS, np.sum),
        "logits": by_token(report, WEIGHTS, part, padding=0.0),
    }


def intermediates_of_v2(
    report: PtxReport,
    reduced: PtxReport,
    launch: PartitionedLaunch,
    max_logits: Tensor,
    exp_sums: Tensor,
    barriers: tuple[int, int] = REDUCED,
) -> Intermediates:
    """Of whole sequences, from the runs of both kernels and what they exchange. The reduce
    kernel's maximum and sum are theirs, but where there is one partition it has nothing to do.

    barriers  behind which it has the maximum of each warp, and its sum
    """
    part, seq_lens = launch.partitions, launch.partitions.seq_lens
    found, size = intermediates_of_paged(report, part), part.geometry.PARTITION_SIZE
    shares = shares_of_partitions(max_logits, exp_sums, seq_lens, size)
    of_tokens = shares.repeat_interleave(size, dim=-1)[..., : found["logits"].shape[-1]]
    found["logits"] = (found["logits"] * of_tokens).float()
    if not reduced.machine.at_barriers:  # no sequence has several partitions
        return found
    several = (seq_lens > size)[:, None, None]
    qk_max = of_warps(reduced, barriers[0], launch.reduce, MAXIMA, np.max)
    exp_sum = of_warps(reduced, barriers[1], launch.reduce, SUMS, np.sum)
    found["qk_max"] = torch.where(several, qk_max, found["qk_max"])
    found["exp_sum"] = torch.where(several, exp_sum, found["exp_sum"])
    return found


def of_warps(
    report: PtxReport,
    barrier: int,
    part: CudaLaunch,
    half: int,
    combine: Callable[..., np.ndarray],
) -> Tensor:
    """What the warps leave in a half of red_smem, the last static array, combined:
    [num_seqs, num_heads, 1]."""
    num_warps, (num_heads, num_seqs, _) = part.geometry.NUM_WARPS, report.machine.grid
    red_smem = report.shared(barrier)[: num_heads * num_seqs, : report.dynamic_start]
    halves = red_smem[:, -2 * num_warps :].reshape(num_seqs, num_heads, 2, num_warps)
    return torch.from_numpy(combine(halves[:, :, half], axis=-1, keepdims=True))


def by_token(
    report: PtxReport, barrier: int, part: CudaLaunch, padding: float = float("-inf")
) -> Tensor:
    """What dynamic shared memory has per token: [num_seqs, num_heads, longest]."""
    num_heads, num_seqs, num_partitions = report.machine.grid
    kept = torch.from_numpy(report.shared(barrier)[:, report.dynamic_start :])
    kept = kept.view(num_partitions, num_seqs, num_heads, -1)
    found = torch.full((num_seqs, num_heads, int(part.seq_lens.max())), padding)
    size = part.geometry.PARTITION_SIZE or found.shape[-1]
    for sequence, seq_len in enumerate(part.seq_lens.tolist()):
        for partition in range(-(-seq_len // size)):
            start = partition * size
            end = min(start + size, seq_len)
            found[sequence, :, start:end] = kept[partition, sequence, :, : end - start]
    return found


def parts_of(launch: CudaLaunch | PartitionedLaunch) -> tuple[CudaLaunch, ...]:
    """Its kernels, in the order in which they run."""
    if isinstance(launch, PartitionedLaunch):
        return launch.partitions, launch.reduce
    return (launch,)


def _nothing() -> None:
    """A kernel to compile, to see whether there is a compiler and whether it knows a GPU."""


def compiled_stage(name: str, backend: Backend, compute_capability: tuple[int, int]) -> Compiled:
    """The backend of a stage, or one in its place, for `check`.

    Raises ValueError for a stage that isn't written in CUDA, or a GPU that the compiler doesn't
    know, TypeError for what isn't a backend, ImportError where there is no compiler.
    """
    allowed = f"False for {name!r}: only stages whose names begin with cuda_ are compiled for a GPU"
    require(name.startswith("cuda_"), "compiled", compute_capability, allowed)
    capability = checked_capability(compute_capability, "compiled")
    require(capability >= OLDEST, "compiled", capability, f"{OLDEST} or newer")
    try:
        compile_ptx(_nothing, compute_capability=capability)
    except ValueError as error:
        raise ValueError(f"compiled: {error}") from None
    if not isinstance(backend, Backend):
        raise TypeError(f"function is {backend!r}; with compiled it must be a backend")
    return Compiled(backend, capability)
