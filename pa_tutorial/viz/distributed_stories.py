"""What the ranks of notebook 17 do: functions that they can import, each called on every rank."""

import os
import signal
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pa_tutorial.attention.paged import paged_online
from pa_tutorial.attention.tiny_lm import load
from pa_tutorial.checks import attempt
from pa_tutorial.distributed.context import context_parallel_decode, deal_out, own_part
from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.heads import heads_of, shard_heads
from pa_tutorial.distributed.runner import serve
from pa_tutorial.distributed.wire import Collective, Wire
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.llm import load_model
from pa_tutorial.walk.problem import DecodeProblem


def meet(group: Group) -> str:
    """Add the numbers of all ranks, by one all-reduce."""
    total = torch.tensor([group.rank])
    dist.all_reduce(total)
    return f"rank {group.rank} of {group.num_ranks}: the sum is {total.item()}"


def attend_with_own_heads(group: Group, problem: DecodeProblem) -> Tensor:
    """One decode step with the heads of this rank: [num_seqs, its query heads, head_size]."""
    inputs = problem.paged("plain")
    heads, kv_heads = heads_of(group.rank, group.num_ranks, problem.num_heads, problem.num_kv_heads)
    q = inputs.q[:, heads.start : heads.stop]
    k_cache = inputs.k_cache[:, kv_heads.start : kv_heads.stop]
    v_cache = inputs.v_cache[:, kv_heads.start : kv_heads.stop]
    # The same block tables and lengths on every rank.
    return paged_online(q, k_cache, v_cache, inputs.block_tables, inputs.seq_lens, inputs.scale)


def sizes_of_weights(group: Group) -> dict[str, tuple[list[int], list[int]]]:
    """Name -> the size of a weight of TinyLM's first layer, whole and on this rank."""
    model = load()
    whole = {name: list(weight.shape) for name, weight in model.layers[0].named_parameters()}
    shard_heads(model, group.mesh)
    own = {
        name: list(getattr(weight, "to_local", lambda weight=weight: weight)().shape)
        for name, weight in model.layers[0].named_parameters()
    }
    return {name: (whole[name], own[name]) for name in whole}


def answer(
    group: Group, prompts: Sequence[str], params: SamplingParams, **options: object
) -> list[str] | None:
    """TinyLM on all ranks: the answers, on rank 0."""

    def work(llm: LLM) -> list[str]:
        return [completion.text for completion in llm.generate(prompts, params, progress=False)]

    return serve(*load_model("tiny"), group, work, **options)


def collectives_of_a_step(group: Group, prompt: str, num_requests: int) -> list[Collective] | None:
    """What rank 0 puts into the network in one decode step of so many requests."""

    def work(llm: LLM) -> list[Collective]:
        requests = [llm.engine.add(llm.tokenizer.encode(prompt)) for _ in range(num_requests)]
        llm.engine.step()  # prefill
        with Wire() as wire:
            llm.engine.step()
        for request in requests:
            llm.engine.cancel(request)
        return wire.collectives

    return serve(*load_model("tiny"), group, work)


def parts(group: Group, problem: DecodeProblem, head: int = 0) -> tuple[int, float, float]:
    """How many blocks of the first sequence this rank has; maximum and sum of one head."""
    share, inputs = _share(group, problem)
    part = own_part(inputs.q, share, inputs.seq_lens, inputs.scale, inputs.alibi_slopes)
    num_blocks = len(share.k_cache) - 1
    return num_blocks, float(part.m[0, head]), float(part.l[0, head])


def wire_of_context(group: Group, problem: DecodeProblem) -> list[Collective]:
    """What a context-parallel decode step puts into the network."""
    share, inputs = _share(group, problem)
    with Wire() as wire:
        context_parallel_decode(inputs.q, share, inputs.seq_lens, inputs.scale)
    return wire.collectives


def _share(group: Group, problem: DecodeProblem) -> tuple:
    inputs = problem.paged("plain")
    whole = inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    return deal_out(*whole, group.rank, group.num_ranks), inputs


def check_context_parallel(group: Group) -> str:
    """The short check, on every rank, with the blocks dealt out."""

    def decode(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        scale: float,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        share = deal_out(k_cache, v_cache, block_tables, seq_lens, group.rank, group.num_ranks)
        return context_parallel_decode(q, share, seq_lens, scale, alibi_slopes)

    result = attempt("paged_online", decode, short=True)
    return f"rank {group.rank}: {result.passed} of {result.total} cases"


def compare_tables(group: Group, odd_rank: int) -> None:
    """All ranks compare a block table before they compute; one of them has another."""
    table = torch.tensor([5, 2, 6, 1])
    if group.rank == odd_rank:
        table[2] = 7
    group.agree("step 3", {"block_tables": table, "seq_lens": torch.tensor([29])})


def die_in_the_middle(group: Group, rank: int) -> None:
    """All ranks add numbers, again and again; one dies."""
    for step in range(100):
        group.watch.doing = f"step {step}"
        if group.rank == rank and step == 7:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        dist.all_reduce(torch.ones(1000))


def hang_in_the_middle(group: Group, rank: int) -> None:
    """All ranks add numbers; one falls asleep."""
    for step in range(100):
        group.watch.doing = f"step {step}"
        if group.rank == rank and step == 7:
            time.sleep(3600)
        dist.all_reduce(torch.ones(1000))
