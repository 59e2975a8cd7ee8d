"""The stages in order: what is new in each, where it runs, and what it is checked against.

A stage names its function by a path, "module of pa_tutorial:function", so that looking at the
ladder loads none of them.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pa_tutorial.walk.calls import Function, run_decode, run_paged, run_sequence
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem

SEQUENCE, DECODE = SequenceProblem.kind, DecodeProblem.kind


def load(at: str | Callable) -> Callable:
    """The function at a path, "attention.full:causal_attention"; or the function itself."""
    if not isinstance(at, str):
        return at
    module, _, name = at.partition(":")
    return getattr(importlib.import_module(f"pa_tutorial.{module}"), name)


@dataclass(frozen=True)
class Stage:
    """One step of the walk.

    at               where its function is, or the function; what the reader may replace
    checked_against  the stages before it that must give the same result
    own_kinds        the kinds of problem on which the stage itself is checked
    layout           the cache layout that it reads, "vllm" or "plain"; None before paging
    cached           without blocks: K and V are kept from step to step
    takes_gaps       the cache may have gaps between blocks and heads
    absence          where the function is that says why the stage cannot run here; None: it can
    """

    name: str
    new: str
    at: str | Function
    where: str = "torch"
    checked_against: tuple[str, ...] = ()
    own_kinds: tuple[str, ...] = (DECODE,)
    layout: str | None = None
    cached: bool = True
    takes_gaps: bool = True
    absence: str | Callable[[], str | None] | None = None

    @property
    def function(self) -> Function:
        return load(self.at)

    def why_absent(self) -> str | None:
        """Why the stage cannot run on this machine; None if it can."""
        return load(self.absence)() if self.absence else None

    def is_checked_on(self, problem: SequenceProblem | DecodeProblem) -> bool:
        """Cases about blocks are for the stages that read blocks."""
        if problem.kind not in self.own_kinds:
            return False
        if not isinstance(problem, DecodeProblem) or not problem.about_blocks:
            return True
        return self.layout is not None and (self.takes_gaps or not problem.gaps)

    def run(
        self, problem: SequenceProblem | DecodeProblem, function: Function | None = None
    ) -> dict[str, Tensor]:
        """The stage's `out` (and `qk`, `logits` where it exposes them) on a problem."""
        chosen = self.function if function is None else function
        if self.layout:
            return run_paged(problem, chosen, self.layout)
        run = run_sequence if problem.kind == SEQUENCE else run_decode
        return run(problem, chosen, self.cached)


_KERNEL = {"where": "simulator, GPU", "layout": "vllm"}

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="full_recompute",
            new="the definition, with the causal mask",
            at="attention.full:causal_attention",
            own_kinds=(SEQUENCE,),
            cached=False,
        ),
        Stage(
            name="kv_cache",
            new="keep K and V; prefill, then one query a step",
            at="attention.cached:cached_attention",
            checked_against=("full_recompute",),
            own_kinds=(SEQUENCE, DECODE),
        ),
        Stage(
            name="paged_gather",
            new="K and V live in shuffled blocks; gather, then attend",
            at="attention.paged:paged_gather",
            checked_against=("kv_cache",),
            layout="vllm",
        ),
        Stage(
            name="online_softmax",
            new="one pass with running max, sum and accumulator",
            at="attention.online:online_attention",
            checked_against=("kv_cache",),
            own_kinds=(SEQUENCE, DECODE),
        ),
        Stage(
            name="paged_online",
            new="blocks streamed through the online softmax, batched",
            at="attention.paged:paged_online",
            checked_against=("paged_gather", "online_softmax"),
            layout="plain",
        ),
        Stage(
            name="cuda_naive",
            new="one thread a token: the indexing with nothing else",
            at="kernels.launch:paged_attention_naive",
            checked_against=("paged_online",),
            **_KERNEL,
        ),
        Stage(
            name="cuda_v1",
            new="q_vecs, k_vecs, thread groups, reductions, LV: vLLM's v1",
            at="kernels.launch:paged_attention_v1",
            checked_against=("cuda_naive",),
            **_KERNEL,
        ),
        Stage(
            name="cuda_v1_vector",
            new="the same with loads of 4, 8 and 16 bytes",
            at="kernels.launch:paged_attention_v1_vector",
            checked_against=("cuda_v1",),
            **_KERNEL,
        ),
        Stage(
            name="cuda_v2",
            new="partitions and the reduce kernel",
            at="kernels.launch:paged_attention_v2",
            checked_against=("cuda_v1_vector",),
            **_KERNEL,
        ),
        Stage(
            name="cpu",
            new="compiled with numba.njit, all cores",
            where="CPU",
            at="kernels.cpu_launch:paged_attention_cpu",
            checked_against=("paged_online",),
            layout="plain",
            takes_gaps=False,
        ),
        Stage(
            name="triton",
            new="the same algorithm in Triton",
            where="interpreter, GPU",
            at="kernels.triton_launch:paged_attention_triton",
            checked_against=("paged_online",),
            layout="plain",
            absence="kernels.triton_launch:why_absent",
        ),
    )
}


def stage_named(name: str) -> Stage:
    """The stage of that name; ValueError lists the names there are."""
    if name not in STAGES:
        raise ValueError(f"stage is {name!r}; it must be one of {', '.join(STAGES)}")
    return STAGES[name]
