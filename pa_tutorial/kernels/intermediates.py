"""What a kernel computed on its way to the output, read from snapshots of its variables.

The kernel says in comments where a quantity is complete, `# mark: scores`, and uses the variable
names below. Any kernel can do the same:

    report = launch(kernel, grid, NUM_THREADS, *args, watch=MARKS, names=NAMES)
    intermediates(report, geometry, seq_lens)
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require_readable, require_shape, require_type
from pa_tutorial.kernels.geometry import Geometry, require_geometry
from simt import Report, Snapshot
from simt.gpus import WARP_SIZE
from simt.snapshots import END

# Complete at these marks: qk_max and all scores; exp_sum; all weights; in accs, the sum over the
# lanes that share a row.
MARKS = ("mark: scores", "mark: sum", "mark: weights", "mark: rows")
SCORES_DONE, SUM_DONE, WEIGHTS_DONE, ROWS_DONE = MARKS
NAMES = ("logits", "qk_max", "exp_sum", "accs")
# The same for the reduce kernel.
REDUCED = "mark: rescaled"
REDUCED_NAMES = ("max_logit", "global_exp_sum")


def intermediates(report: Report, geometry: Geometry, seq_lens: Tensor) -> dict[str, Tensor]:
    """The quantities of one launch of a v1 kernel, watched at MARKS.

    seq_lens  [num_seqs]
    returns   qk       [num_seqs, num_heads, longest]  scores, padded with -inf
              qk_max   [num_seqs, num_heads, 1]        the largest score, as thread 0 knows it
              exp_sum  [num_seqs, num_heads, 1]        sum of exp(qk - qk_max)
              logits   [num_seqs, num_heads, longest]  weights, padded with 0
              accs     [num_seqs, num_heads, head_size] float64: the sums of V that each warp
                       has, added up here rather than by the kernel's tree
    """
    require_geometry(geometry)
    return {
        "qk": scores(report, SCORES_DONE, "logits", seq_lens),
        "qk_max": of_all(report, SCORES_DONE, lambda snapshot: snapshot["qk_max"][:1]),
        "exp_sum": of_all(report, SUM_DONE, lambda snapshot: snapshot["exp_sum"][:1]),
        "logits": scores(report, WEIGHTS_DONE, "logits", seq_lens, 0.0),
        "accs": of_all(report, ROWS_DONE, lambda s: sum_of_warps(s["accs"], geometry)),
    }


def intermediates_of_naive(report: Report, seq_lens: Tensor) -> dict[str, Tensor]:
    """qk, qk_max and exp_sum of a launch of naive_kernel, watched at SCORES_DONE and its end: those
    that are variables of the kernel there."""
    known = [snapshot.values for snapshot in report.at(END)]
    names = [n for n in ("qk_max", "exp_sum") if known and all(n in values for values in known)]
    found = {name: of_all(report, END, lambda s, n=name: s[n][:1]) for name in names}
    return {"qk": scores(report, SCORES_DONE, "qk", seq_lens)} | found


def intermediates_of_v2(
    report: Report,
    reduced: Report,
    geometry: Geometry,
    seq_lens: Tensor,
    max_logits: Tensor,
    exp_sums: Tensor,
) -> dict[str, Tensor]:
    """The same quantities for v2: for the whole sequence, however it is partitioned.

    report      of the paged kernel, watched at MARKS
    reduced     of the reduce kernel, watched at REDUCED
    max_logits  [num_seqs, num_heads, max_num_partitions]  as the paged kernel wrote them
    exp_sums    same shape

    qk_max and exp_sum come from the reduce kernel or, where there is only one partition and it
    didn't compute any, from the partition. In the kernel the weights of a partition sum to 1; here
    they, and accs, are multiplied by the partition's share of the sum, in float64.
    """
    num_heads, num_seqs, _ = report.grid
    size, longest = geometry.PARTITION_SIZE, int(seq_lens.max())
    shares = shares_of_partitions(max_logits, exp_sums, seq_lens, size)
    qk_max, exp_sum = (array[..., :1].clone() for array in (max_logits, exp_sums))
    for snapshot in reduced.at(REDUCED):
        head, sequence, _ = snapshot.block
        qk_max[sequence, head] = as_tensor(snapshot["max_logit"][:1])
        exp_sum[sequence, head] = as_tensor(snapshot["global_exp_sum"][:1])
    shares_of_tokens = shares.repeat_interleave(size, dim=-1)[..., :longest]
    accs = torch.zeros(num_seqs, num_heads, geometry.HEAD_SIZE, dtype=torch.float64)
    for snapshot in report.at(ROWS_DONE):
        head, sequence, partition = snapshot.block
        rows = as_tensor(sum_of_warps(snapshot["accs"], geometry))
        accs[sequence, head] += shares[sequence, head, partition] * rows
    logits = scores(report, WEIGHTS_DONE, "logits", seq_lens, 0.0, size)
    return {
        "qk": scores(report, SCORES_DONE, "logits", seq_lens, partition_size=size),
        "qk_max": qk_max,
        "exp_sum": exp_sum,
        "logits": (logits * shares_of_tokens).float(),
        "accs": accs,
    }


def shares_of_partitions(
    max_logits: Tensor, exp_sums: Tensor, seq_lens: Tensor, partition_size: int
) -> Tensor:
    """What part of a sequence's sum each partition has: [num_seqs, num_heads, partitions] float64.

    share = exp_sum * exp(max_logit - qk_max) / sum of the same over all partitions
    """
    exists = partition_size * torch.arange(max_logits.shape[-1]) < seq_lens[:, None, None]
    maxima = torch.where(exists, max_logits.double(), -torch.inf)
    sums = torch.where(exists, exp_sums.double(), 0.0)
    weights = sums * (maxima - maxima.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def scores(
    report: Report,
    where: str,
    name: str,
    seq_lens: Tensor,
    padding: float = float("-inf"),
    partition_size: int = 0,
) -> Tensor:
    """One number per token, from a shared array: [num_seqs, num_heads, longest].

    For a kernel like naive_kernel, watched at its end: scores(report, "end", "qk", seq_lens)
    """
    require_type(isinstance(report, Report), "report", report, "a Report, from simt.launch")
    require_readable("seq_lens", seq_lens)
    num_heads, num_seqs, _ = report.grid
    require_shape(seq_lens.shape == (num_seqs,), "seq_lens", seq_lens, f"it must be [{num_seqs}]")
    found = torch.full((num_seqs, num_heads, int(seq_lens.max())), padding)
    for snapshot in report.at(where):
        head, sequence, partition = snapshot.block
        start, seq_len = partition * partition_size, int(seq_lens[sequence])
        if start >= seq_len:
            raise RuntimeError(
                f"thread block {snapshot.block} went on to {where!r}, but its partition begins at "
                f"token {start} and the sequence has {seq_len}: it has nothing to do"
            )
        end = min(start + partition_size, seq_len) if partition_size else seq_len
        found[sequence, head, start:end] = as_tensor(snapshot[name][: end - start])
    return found


def of_all(report: Report, where: str, read: Callable[[Snapshot], np.ma.MaskedArray]) -> Tensor:
    """What `read` finds in the snapshot of each thread block: [num_seqs, num_heads, n]."""
    num_heads, num_seqs, _ = report.grid
    found = {snapshot.block: as_tensor(read(snapshot)) for snapshot in report.at(where)}
    missing = {*np.ndindex(num_heads, num_seqs, 1)} - set(found)
    if missing:
        raise RuntimeError(f"thread block {min(missing)} never reached {where!r}")
    rows = [[found[head, seq, 0] for head in range(num_heads)] for seq in range(num_seqs)]
    return torch.stack([torch.stack(row) for row in rows])


def as_tensor(values: np.ndarray) -> Tensor:
    """NaN where nothing was written."""
    return torch.from_numpy(np.ma.filled(values, np.nan))


def sum_of_warps(accs: np.ma.MaskedArray, geometry: Geometry) -> np.ndarray:
    """[NUM_THREADS, NUM_ROWS_PER_THREAD] -> [HEAD_SIZE] float64; NaN where nothing was written.

    After the sum over lanes, each lane that shares a row has its warp's sum; we take the first.
    """
    found = np.ma.filled(accs, np.nan)
    rows = np.zeros(geometry.HEAD_SIZE)
    step = geometry.NUM_V_VECS_PER_ROW
    rows_of = {lane: list(geometry.value_rows(lane)) for lane in range(0, WARP_SIZE, step)}
    for thread in range(0, geometry.NUM_THREADS, step):
        of_lane = rows_of[thread % WARP_SIZE]
        rows[of_lane] += found[thread, : len(of_lane)]
    return rows
