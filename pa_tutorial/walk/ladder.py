"""The stages in order: what is new in each, where it runs, and what it is checked against.

A stage names its function by a path, "module of pa_tutorial:function"; without one, it is the
backend of its own name (pa_tutorial.backends). So looking at the ladder loads none of them.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from pa_tutorial.backends import Backend, backend_named
from pa_tutorial.walk.calls import (
    Candidate,
    CandidateBackend,
    Function,
    run_decode,
    run_paged,
    run_sequence,
    small_sizes,
)
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem

SEQUENCE, DECODE = SequenceProblem.kind, DecodeProblem.kind


def load(path: str) -> Callable:
    """The function at a path, "attention.full:causal_attention"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"pa_tutorial.{module}"), name)


@dataclass(frozen=True)
class Stage:
    """One step of the walk: a function before paging, a backend of the same name from then on.

    function         where it is, or the function itself; it takes (q, k, v, scale, alibi_slopes,
                     probe). None: the stage is a backend (pa_tutorial.backends)
    checked_against  the stages before it that must give the same result
    own_kinds        the kinds of problem on which the stage itself is checked
    cached           without blocks: K and V are kept from step to step
    takes_gaps       the cache may have gaps between blocks and heads
    cut_by           the names of the sizes that its backend takes to cut a sequence
    """

    name: str
    new: str
    function: str | Function | None = None
    where: str = "torch"
    checked_against: tuple[str, ...] = ()
    own_kinds: tuple[str, ...] = (DECODE,)
    cached: bool = True
    takes_gaps: bool = True
    cut_by: tuple[str, ...] = ()

    @property
    def is_paged(self) -> bool:
        return self.function is None

    def loaded_backend(self) -> Backend:
        return backend_named(self.name)

    def sizes(self, problem: DecodeProblem) -> dict[str, int]:
        """Of the backend, for a problem: small, so that there is something to merge."""
        return small_sizes(problem, self.cut_by)

    def loaded_function(self) -> Function:
        return load(self.function) if isinstance(self.function, str) else self.function

    def why_absent(self) -> str | None:
        """Why the stage cannot run on this machine; None if it can."""
        return self.loaded_backend().why_absent() if self.is_paged else None

    def is_checked_on(self, problem: SequenceProblem | DecodeProblem) -> bool:
        """Cases about blocks are for the stages that read blocks."""
        if problem.kind not in self.own_kinds:
            return False
        if not isinstance(problem, DecodeProblem) or not problem.about_blocks:
            return True
        return self.is_paged and (self.takes_gaps or not problem.gaps)

    def run(
        self,
        problem: SequenceProblem | DecodeProblem,
        tried: Function | Backend | None = None,
        takes: Sequence[str] = (),
    ) -> dict[str, Tensor]:
        """`out` on a problem, and the intermediates that are shown.

        tried  what to run in place of the stage: a function, or a backend for a paged stage
        takes  what else the function takes by name: see Candidate
        """
        if self.is_paged:
            backend = self.loaded_backend()
            if isinstance(tried, Backend):
                backend = tried
            elif tried is not None:
                backend = CandidateBackend(Candidate(tried, takes), backend.layout)
            return run_paged(problem, backend, self.sizes(problem))
        candidate = Candidate(tried, takes)
        if tried is None:
            candidate = Candidate(self.loaded_function(), takes=("probe",))
        run = run_sequence if problem.kind == SEQUENCE else run_decode
        return run(problem, candidate, self.cached)


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="full_recompute",
            new="the definition, with the causal mask",
            function="attention.full:causal_attention",
            own_kinds=(SEQUENCE,),
            cached=False,
        ),
        Stage(
            name="kv_cache",
            new="keep K and V; prefill, then one query a step",
            function="attention.cached:cached_attention",
            checked_against=("full_recompute",),
            own_kinds=(SEQUENCE, DECODE),
        ),
        Stage(
            name="paged_gather",
            new="K and V live in shuffled blocks; gather, then attend",
            checked_against=("kv_cache",),
        ),
        Stage(
            name="online_softmax",
            new="one pass with running max, sum and accumulator",
            function="attention.online:online_attention",
            checked_against=("kv_cache",),
            own_kinds=(SEQUENCE, DECODE),
        ),
        Stage(
            name="paged_online",
            new="blocks streamed through the online softmax, batched",
            checked_against=("paged_gather", "online_softmax"),
        ),
        Stage(
            name="cuda_naive",
            new="one thread a token: the indexing with nothing else",
            checked_against=("paged_online",),
            where="simulator, GPU",
        ),
        Stage(
            name="cuda_v1",
            new="q_vecs, k_vecs, thread groups, reductions, LV: vLLM's v1",
            checked_against=("cuda_naive",),
            where="simulator, GPU",
        ),
        Stage(
            name="cuda_v1_vector",
            new="the same with loads of 4, 8 and 16 bytes",
            checked_against=("cuda_v1",),
            where="simulator, GPU",
        ),
        Stage(
            name="cuda_v2",
            new="partitions and the reduce kernel",
            checked_against=("cuda_v1_vector",),
            cut_by=("partition_size",),
            where="simulator, GPU",
        ),
        Stage(
            name="cpu",
            new="compiled with numba.njit, all cores",
            where="CPU",
            checked_against=("paged_online",),
            takes_gaps=False,
            cut_by=("num_shares",),
        ),
        Stage(
            name="triton",
            new="the same algorithm in Triton",
            where="interpreter, GPU",
            checked_against=("paged_online",),
            cut_by=("partition_size", "tile_size"),
        ),
    )
}
