"""Models, requests, and what ranks do with them: the processes import their functions from here."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numba
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.online import Part
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.distributed.context import merge_over_ranks
from pa_tutorial.distributed.group import Disagreement, Group
from pa_tutorial.distributed.heads import shard_heads
from pa_tutorial.distributed.runner import ParallelRunner, serve
from pa_tutorial.distributed.wire import Collective, Wire
from pa_tutorial.engine import LLM, Completion, SamplingParams
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.engine import StepStatistics
from pa_tutorial.engine.llm import load_model
from pa_tutorial.engine.model import Llama, LlamaConfig
from pa_tutorial.engine.runner import Model, Runner

NUM_REQUESTS = 16
LONGEST_PROMPT = 40
# Chunked prefill, more requests than may run, and a pool that is too small for those that do.
TIGHT = {"num_blocks": 30, "block_size": 4}
TIGHT |= {"token_budget": 48, "chunk_size": 15, "max_num_seqs": 10}
# 2 layers, 8 query heads, 4 KV heads, head_size 16, hidden_size 64, mlp_size 96, 100 tokens.
LLAMA = LlamaConfig(2, 8, 4, 16, 64, 96, 100, max_len=128, eos_tokens=(7,))
CONFIGS = {
    "llama": LLAMA,
    # One KV head: all ranks have it. 97 scores are a multiple of no number of ranks.
    "qwen2": replace(
        LLAMA, num_layers=1, num_heads=4, num_kv_heads=1, vocab_size=97, qkv_bias=True, is_tied=True
    ),
    "biased": replace(LLAMA, num_kv_heads=2, qkv_bias=True, out_bias=True, mlp_bias=True),
    "alibi": TinyConfig(1, 4, 4, head_size=16, vocab_size=64, alibi=True),
}


def new_model(name: str, dtype: torch.dtype = torch.float64) -> Model:
    """The same on every rank. In float64, sums in another order change the 16th digit.

    name  "tiny" (the trained TinyLM: 4 heads, 2 KV heads), or one of CONFIGS, with random weights
    """
    if name == "tiny":
        return tiny_lm.load().to(dtype)
    config = CONFIGS[name]
    model = (TinyLM if isinstance(config, TinyConfig) else Llama)(config).requires_grad_(False)
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        # So wide that every layer changes which token is the likeliest; norms and biases too.
        width = 1.0 if weight.dim() == 1 else 2.0 * weight.shape[-1] ** -0.5
        weight.normal_(0.0, width, generator=random)
    return model.to(dtype)


@cache
def requests(vocab_size: int) -> tuple[list[list[int]], list[SamplingParams], list[int]]:
    """Prompts, parameters, arrivals. A third of the prompts begins like one before."""
    rng = np.random.default_rng(3)
    prompts: list[list[int]] = []
    params, arrivals = [], []
    for index in range(NUM_REQUESTS):
        prompt = rng.integers(0, vocab_size, rng.integers(1, LONGEST_PROMPT + 1)).tolist()
        if index % 3 == 2:
            older = prompts[int(rng.integers(index))]
            prompt = (older + prompt)[:LONGEST_PROMPT]
        prompts.append(prompt)
        options = {"max_tokens": int(rng.integers(1, 10)), "seed": index}
        if index % 4 == 1:
            cut = {"top_k": 10} if index % 8 == 1 else {"top_p": 0.8}
            options |= {"temperature": 0.9, "num_samples": 3, **cut}
        stop_tokens = rng.integers(0, vocab_size, vocab_size // 20).tolist()
        params.append(SamplingParams(stop_tokens=stop_tokens, **options))
        arrivals.append(int(rng.integers(0, 9)))
    return prompts, params, arrivals


@dataclass(frozen=True)
class Served:
    """What came out, and what every step did."""

    completions: list[Completion]
    statistics: list[StepStatistics]


def answer_all(llm: LLM, num_requests: int = NUM_REQUESTS) -> Served:
    asked = (part[:num_requests] for part in requests(llm.engine.model.config.vocab_size))
    return Served(llm.generate(*asked, progress=False), llm.statistics)


def serve_all(
    group: Group,
    name: str,
    dtype: torch.dtype = torch.float64,
    num_requests: int = NUM_REQUESTS,
    **options: object,
) -> Served | None:
    """On every rank: the requests, as a program would serve them."""
    work = partial(answer_all, num_requests=num_requests)
    return serve(new_model(name, dtype), None, group, work, **options)


class Gaps(Runner):
    """Of one device. Notes the distance between the two best scores of every row."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.gaps: list[float] = []

    def run(self, batch: Batch) -> Tensor:
        scores = super().run(batch)
        best = scores.topk(2).values
        self.gaps += (best[:, 0] - best[:, 1]).tolist()
        return scores


@cache
def one_device(
    name: str,
    dtype: torch.dtype = torch.float64,
    num_requests: int = NUM_REQUESTS,
    **options: object,
) -> Served:
    """What one device answers, where there is no tie that rounding could turn."""
    llm = LLM(new_model(name, dtype), None, make_runner=Gaps, **options)
    served = answer_all(llm, num_requests)
    assert min(llm.engine.runner.gaps) > (1e-4 if dtype == torch.float64 else 1e-3)
    assert {step.error for step in served.statistics} == {None}
    if num_requests == NUM_REQUESTS and "stage" not in options:
        assert served.statistics[-1].num_preemptions > 0
    return served


# What each rank has, and what it sends ----------------------------------------------------------


def weights_of(group: Group, name: str) -> dict[str, Tensor]:
    """What one rank keeps of every weight."""
    model = new_model(name)
    shard_heads(model, group)
    return {
        name: weight.to_local() if isinstance(weight, DTensor) else weight
        for name, weight in model.named_parameters()
    }


def refuse_unknown_layer(group: Group) -> str:
    """The refusal. No weight may have changed."""
    model = TinyLM(TinyConfig(num_layers=1, num_kv_heads=1)).requires_grad_(False)
    model.layers[0].mlp_extra = nn.Linear(128, 128)
    shapes = [weight.shape for weight in model.parameters()]
    try:
        shard_heads(model, group)
    except ValueError as error:
        assert shapes == [weight.shape for weight in model.parameters()]
        return str(error)
    return "no refusal"


class Counting(ParallelRunner):
    """Counts the collectives of every step."""

    steps: list[list[Collective]]

    def _step(self, batch: Batch | None = None) -> Tensor | None:
        with Wire() as wire:
            scores = super()._step(batch)
        if scores is not None:
            self.steps.append(wire.collectives)
        return scores


def count_collectives(group: Group, name: str) -> list[list[Collective]]:
    """Of each step: two prompts, then 39 decode steps of both."""
    model = new_model(name)
    shard_heads(model, group)
    llm = LLM(model, None, make_runner=partial(Counting, group=group))
    runner = llm.engine.runner
    runner.steps = []
    if group.rank > 0:
        runner.follow()
    else:
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        llm.generate([[1] * 50, [2, 3]], params, progress=False)
        runner.stop()
    return runner.steps


def merge_given(
    group: Group, parts: list[tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, list[Collective]]:
    """Each rank comes with its own part."""
    with Wire() as wire:
        return merge_over_ranks(Part(*parts[group.rank])), wire.collectives


def redistributed(tensor: Tensor, before: object, after: object) -> None:
    """From one placement to another, by torch.distributed.tensor."""
    ranks = init_device_mesh("cpu", (dist.get_world_size(),))
    DTensor.from_local(tensor, ranks, [before]).redistribute(ranks, [after]).to_local()


COLLECTIVES: dict[str, Callable[[Tensor], object]] = {
    "all_reduce": dist.all_reduce,
    "all_gather": lambda tensor: dist.all_gather([tensor.clone(), tensor.clone()], tensor),
    "broadcast": lambda tensor: dist.broadcast(tensor, 0),
    "barrier": lambda tensor: dist.barrier(),
    "sum of tensors": lambda tensor: redistributed(tensor, Partial(), Replicate()),
    "whole of tensors": lambda tensor: redistributed(tensor, Shard(0), Replicate()),
    "nothing": lambda tensor: tensor * 2,
    "not known": lambda tensor: dist.all_to_all_single(tensor, tensor.clone()),
}


def counted(group: Group, name: str) -> list[tuple[str, int]] | str:
    """What Wire counts while a collective runs with 96 bytes; what it says if it refuses."""
    try:
        with Wire() as wire:
            COLLECTIVES[name](torch.arange(12, dtype=torch.float64))
    except NotImplementedError as error:
        return str(error)
    return [(one.name, one.num_bytes) for one in wire.collectives]


# What goes wrong --------------------------------------------------------------------------------


def do_harm(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":  # it stands still as a whole, but lives
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "hang":
        time.sleep(1000)
    raise ArithmeticError("a layer broke")


def meet(group: Group, kind: str, rank: int) -> None:
    """One rank does not come, or not to the end; the others wait for it."""
    if group.rank == rank:
        do_harm(kind)
    dist.all_reduce(torch.zeros(1))


def serve_different(group: Group, model: str, changed: bool, **options: object) -> str:
    """Rank 1 has another model, another weight, or other sizes, than rank 0: the refusal."""
    mine = new_model(model if group.rank == 1 else "biased")
    mine.norm.weight[0] += changed and group.rank == 1
    try:
        serve(mine, None, group, answer_all, **(options if group.rank == 1 else {}))
    except Disagreement as error:  # on every rank at the same point: they can go on
        return str(error)
    return "no refusal"


def pause(group: Group, seconds: float) -> bool | None:
    """Some work, a pause without requests, and some more work."""

    def work(llm: LLM) -> bool:
        llm.generate(["The for"], progress=False)
        time.sleep(seconds)
        return llm.generate(["The while"], progress=False)[0].error is None

    return serve(*load_model("tiny"), group, work)


def threads_after_the_cpu_stage(group: Group) -> tuple[int, int]:
    """Of torch and of Numba, when Numba has started its own."""

    serve(*load_model("tiny"), group, answer_all, stage="cpu")
    return torch.get_num_threads(), numba.get_num_threads()


def rank_of(group: Group) -> int:
    return group.rank


def sleep_on_all(group: Group, seconds: float) -> str:
    time.sleep(seconds)
    return "of the run that was interrupted"


def a_lock(group: Group) -> object:
    """Of a process: it cannot be sent."""
    return threading.Lock()


def write_to(group: Group, tensor: Tensor) -> Tensor:
    tensor += 1 + group.rank
    dist.barrier()
    return tensor


def end_soon(group: Group) -> None:
    """Die between two runs."""
    if group.rank == 1:
        threading.Timer(0.3, os._exit, (7,)).start()
