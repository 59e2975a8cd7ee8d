"""The stages in order: what is new in each, where it runs, and what it is checked against.

A stage names its function or its backend by a path, "module of pa_tutorial:name", so looking at the
ladder loads none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from pa_tutorial.attention.backend import Backend
from pa_tutorial.checks.calls import (
    Candidate,
    CandidateBackend,
    Function,
    run_decode,
    run_paged,
    run_sequence,
)
from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem

SEQUENCE, DECODE = SequenceProblem.kind, DecodeProblem.kind
# For the CPU kernel: more than most machines have cores, so that most problems have partitions to
# merge; fixed, so that the result is the same on every machine.
NUM_SHARES = 5
# In tokens; half of vLLM's.
MOST_OF_A_PARTITION = 128
# For the Triton kernel: small, so that most problems have several tiles.
TILE_SIZE = 16


def some_partitions(problem: DecodeProblem) -> int:
    """Tokens per partition, where the problem doesn't say: a third of the longest sequence in whole
    blocks, at most 128.

    With vLLM's 512, most problems would have only one partition and nothing to reduce, and the
    longest would not have more partitions than a warp has lanes.
    """
    if problem.partition_size:
        return problem.partition_size
    third_of_blocks = -(-max(problem.seq_lens) // (3 * problem.block_size))  # rounded up
    return min(third_of_blocks * problem.block_size, MOST_OF_A_PARTITION)


@dataclass(frozen=True)
class Stage:
    """One stage of the walk: a function before paging, a backend from then on.

    checked_against  the earlier stages that must give the same result
    path             of its function, which takes (q, k, v, scale, alibi_slopes, probe), or of its
                     backend (attention/backend.py)
    is_paged         it reads blocks, and is a backend
    own_kinds        the kinds of problem on which the stage itself is checked
    cached           for a stage without blocks: it keeps K and V from step to step
    takes_gaps       the cache may have gaps between blocks and heads
    reads_float8     the cache may be 8-bit
    cut_by           the names of the sizes by which its backend cuts a sequence
    """

    name: str
    new: str
    path: str
    checked_against: tuple[str, ...]
    is_paged: bool = True
    where: str = "torch"
    own_kinds: tuple[str, ...] = (DECODE,)
    cached: bool = True
    takes_gaps: bool = True
    reads_float8: bool = False
    cut_by: tuple[str, ...] = ()

    def sizes(self, problem: DecodeProblem) -> dict[str, int]:
        """The backend's sizes for a problem, small, so that there is something to merge."""
        sizes = {"partition_size": some_partitions(problem)}
        sizes |= {"num_shares": NUM_SHARES, "tile_size": TILE_SIZE}
        return {name: sizes[name] for name in self.cut_by}

    def why_absent(self) -> str | None:
        """Why the stage can't run on this machine; None if it can."""
        return backend_named(self.name).why_absent() if self.is_paged else None

    def is_checked_on(self, problem: SequenceProblem | DecodeProblem) -> bool:
        """Whether a problem suits the stage; cases about blocks are for stages that read blocks."""
        if problem.kind not in self.own_kinds:
            return False
        if not isinstance(problem, DecodeProblem) or not problem.about_blocks:
            return True
        return self.is_paged and self.reads(problem) and (self.takes_gaps or not problem.gaps)

    def reads(self, problem: SequenceProblem | DecodeProblem) -> bool:
        """Whether it reads a cache of the problem's type, so that another can be compared."""
        return self.reads_float8 or not getattr(problem, "cache_dtype", None)

    def run(
        self,
        problem: SequenceProblem | DecodeProblem,
        tried: Function | Backend | None = None,
        takes: Sequence[str] = (),
    ) -> dict[str, Tensor]:
        """`out` on a problem, and the intermediates that the stage shows.

        tried  what to run in place of the stage: a function, or a backend for a paged stage
        takes  what else the function takes by name: see Candidate
        """
        if self.is_paged:
            backend = backend_named(self.name)
            if isinstance(tried, Backend):
                backend = tried
            elif tried is not None:
                backend = CandidateBackend(Candidate(tried, takes), backend.layout)
            return run_paged(problem, backend, self.sizes(problem))
        candidate = Candidate(tried, takes)
        if tried is None:
            candidate = Candidate(load(self.path), takes=("probe",))
        run = run_sequence if problem.kind == SEQUENCE else run_decode
        return run(problem, candidate, self.cached)


ANY_KIND, SIMULATED = (SEQUENCE, DECODE), "simulator, GPU"
STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "full_recompute", "the definition, with the causal mask",
            "attention.full:causal_attention", (),
            is_paged=False, own_kinds=(SEQUENCE,), cached=False,
        ),
        Stage(
            "kv_cache", "keep K and V; prefill, then one query per step",
            "attention.cached:cached_attention", ("full_recompute",),
            is_paged=False, own_kinds=ANY_KIND,
        ),
        Stage(
            "paged_gather", "K and V are in shuffled blocks; gather, then attend",
            "attention.paged:gather_backend", ("kv_cache",), reads_float8=True,
        ),
        Stage(
            "online_softmax", "one pass with running max, sum and accumulator",
            "attention.online:online_attention", ("kv_cache",), is_paged=False, own_kinds=ANY_KIND,
        ),
        Stage(
            "paged_online", "blocks streamed through the online softmax, batched",
            "attention.paged:online_backend", ("paged_gather", "online_softmax"),
            reads_float8=True,
        ),
        Stage(
            "cuda_naive", "one thread per token: the indexing and nothing else",
            "kernels.cuda_backends:naive_backend", ("paged_online",), where=SIMULATED,
        ),
        Stage(
            "cuda_v1", "q_vecs, k_vecs, thread groups, reductions, LV: vLLM's v1",
            "kernels.cuda_backends:v1_backend", ("cuda_naive",),
            where=SIMULATED, reads_float8=True,
        ),
        Stage(
            "cuda_v1_vector", "the same with loads of 4, 8 and 16 bytes",
            "kernels.cuda_backends:v1_vector_backend", ("cuda_v1",),
            where=SIMULATED, reads_float8=True,
        ),
        Stage(
            "cuda_v2", "partitions and the reduce kernel",
            "kernels.cuda_backends:v2_backend", ("cuda_v1_vector",),
            where=SIMULATED, reads_float8=True, cut_by=("partition_size",),
        ),
        Stage(
            "cpu", "compiled with numba.njit, all cores",
            "kernels.cpu.backend:cpu_backend", ("paged_online",),
            where="CPU", takes_gaps=False, reads_float8=True, cut_by=("num_shares",),
        ),
        Stage(
            "triton", "the same algorithm in Triton",
            "kernels.triton.backend:triton_backend", ("paged_online",),
            where="interpreter, GPU", reads_float8=True, cut_by=("partition_size", "tile_size"),
        ),
    )
}  # fmt: skip
PAGED = tuple(name for name, stage in STAGES.items() if stage.is_paged)


def backend_named(name: str) -> Backend:
    """The backend of a stage. Raises ValueError, with the names that there are, for another."""
    if name not in PAGED:
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(PAGED)}")
    return load(STAGES[name].path)


def load(path: str) -> Any:
    """What a path names, as in "attention.full:causal_attention"."""
    return resolve_name(f"pa_tutorial.{path}")
