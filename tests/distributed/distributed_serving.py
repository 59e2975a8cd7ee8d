"""Models, requests, and what every rank does with them: ranks import their functions from here."""

import os
import time
from dataclasses import dataclass, replace
from functools import cache, partial

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.distributed.group import Disagreement, Group
from pa_tutorial.distributed.heads import HeadShare, shard_heads
from pa_tutorial.distributed.runner import ParallelRunner, serve
from pa_tutorial.distributed.wire import Collective, Wire
from pa_tutorial.engine import LLM, Completion, SamplingParams
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.engine import StepStatistics
from pa_tutorial.engine.llm import load_model
from pa_tutorial.engine.model import Llama, LlamaConfig
from pa_tutorial.engine.runner import Model, Runner, prefill_attention
from pa_tutorial.paging.layouts import by_token, gather

NUM_REQUESTS = 16
LONGEST_PROMPT = 40
# Chunked prefill, more requests than may run, and a pool that is too small for those that do.
TIGHT = {
    "num_blocks": 30,
    "block_size": 4,
    "token_budget": 48,
    "chunk_size": 15,
    "max_num_seqs": 10,
}
LLAMA = LlamaConfig(
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_size=16,
    hidden_size=64,
    mlp_size=96,
    vocab_size=100,
    max_len=128,
    eos_tokens=(7,),
)
CONFIGS = {
    "llama": LLAMA,
    # One KV head: all ranks have it. 97 scores are a multiple of no number of ranks.
    "qwen2": replace(
        LLAMA, num_layers=1, num_heads=4, num_kv_heads=1, vocab_size=97, qkv_bias=True, is_tied=True
    ),
    "biased": replace(LLAMA, num_kv_heads=2, qkv_bias=True, out_bias=True, mlp_bias=True),
    "alibi": TinyConfig(
        num_layers=1, num_heads=4, num_kv_heads=4, head_size=16, vocab_size=64, alibi=True
    ),
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
        weight.normal_(
            0.0, 1.0 if weight.dim() == 1 else 2.0 * weight.shape[-1] ** -0.5, generator=random
        )
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
        draws = index % 4 == 1
        params.append(
            SamplingParams(
                max_tokens=int(rng.integers(1, 10)),
                temperature=0.9 if draws else 0.0,
                top_k=10 if index % 8 == 1 else 0,
                top_p=0.8 if index % 8 == 5 else 1.0,
                seed=index,
                num_samples=3 if draws else 1,
                stop_tokens=tuple(rng.integers(0, vocab_size, vocab_size // 20).tolist()),
            )
        )
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
) -> tuple[Served, float, list[tuple[Tensor, Tensor]]]:
    """What one device answers, its smallest gap, and its cache afterwards."""
    llm = LLM(new_model(name, dtype), None, make_runner=Gaps, **options)
    served = answer_all(llm, num_requests)
    return served, min(llm.engine.runner.gaps), caches_of(llm)


def caches_of(llm: LLM) -> list[tuple[Tensor, Tensor]]:
    """K and V of every layer, [num_blocks, block_size, num_kv_heads, …], in whatever layout."""
    cache = llm.engine.runner.cache
    return [by_token(k, v) for k, v in zip(cache.k, cache.v, strict=True)]


def serve_and_show(group: Group, name: str, **options: object) -> list[tuple[Tensor, Tensor]]:
    """As serve_all; each rank returns its own cache."""
    share = shard_heads(new_model(name), group.mesh)
    llm = LLM(share, None, make_runner=partial(ParallelRunner, group=group), **options)
    if group.rank > 0:
        llm.engine.runner.follow()
    else:
        answer_all(llm)
        llm.engine.runner.stop()
    return caches_of(llm)


def exact_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """A decode step in the dtype of q; the stages of the ladder compute in float32."""
    outs = []
    for query, table, seq_len in zip(q, block_tables, seq_lens.tolist(), strict=True):
        k, v = gather(k_cache, v_cache, table, seq_len)
        outs.append(prefill_attention(query[None], k, v, scale, alibi_slopes))
    return torch.cat(outs)


def keep_scores(model: Model | HeadShare) -> list[Tensor]:
    """What the model returns in every step from now on, before it is made float32."""
    kept, run = [], model.run

    def run_and_keep(*args: object, **options: object) -> Tensor:
        kept.append(run(*args, **options))
        return kept[-1]

    model.run = run_and_keep
    return kept


def score_all(group: Group | None, name: str) -> list[Tensor]:
    """The scores of every step, on this rank or (without a group) on one device."""
    model = new_model(name)
    make_runner = Runner
    if group:
        model = shard_heads(model, group.mesh)
        make_runner = partial(ParallelRunner, group=group)
    kept = keep_scores(model)
    llm = LLM(model, None, make_runner=make_runner, stage="paged_gather", **TIGHT)
    runner = llm.engine.runner
    runner.stage = replace(runner.stage, at=exact_decode)
    if group and group.rank > 0:
        runner.follow()
    else:
        answer_all(llm, 6)
        if group:
            runner.stop()
    return kept


class Counting(ParallelRunner):
    """Counts the collectives of every step."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.steps: list[tuple[tuple[int, int], list[Collective]]] = []

    def _step(self, batch: Batch | None) -> Tensor | None:
        shape = (len(batch.input_ids), len(batch.last_rows)) if batch else (0, 0)  # on rank 0
        with Wire() as wire:
            scores = super()._step(batch)
        if scores is not None:
            self.steps.append((shape, wire.collectives))
        return scores


def count_collectives(group: Group, name: str) -> list[tuple[tuple[int, int], list[Collective]]]:
    """Of each step.

    returns  (tokens, rows of scores), which only rank 0 knows, and the collectives
    """
    share = shard_heads(new_model(name), group.mesh)
    llm = LLM(share, None, make_runner=partial(Counting, group=group))
    if group.rank > 0:
        llm.engine.runner.follow()
    else:
        llm.generate(
            [[1] * 50, [2, 3]], SamplingParams(max_tokens=40, ignore_eos=True), progress=False
        )
        llm.engine.runner.stop()
    return llm.engine.runner.steps


def refuse_unknown_layer(group: Group) -> tuple[str, list[str]]:
    """The refusal, and the names of the weights that changed nevertheless."""
    model = TinyLM(TinyConfig(num_layers=1, num_kv_heads=1)).requires_grad_(False)
    model.layers[0].mlp_extra = nn.Linear(128, 128)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    try:
        shard_heads(model, group.mesh)
    except ValueError as error:
        changed = [
            name for name, weight in model.named_parameters() if weight.shape != before[name].shape
        ]
        return str(error), changed
    return "no refusal", []


def weights_of(group: Group, name: str) -> dict[str, Tensor]:
    """What one rank keeps of every weight."""
    model = new_model(name)
    shard_heads(model, group.mesh)
    return {
        name: weight.to_local() if isinstance(weight, DTensor) else weight
        for name, weight in model.named_parameters()
    }


class Faulty(ParallelRunner):
    """Does harm on one rank, in step 2, after the first layer."""

    harm: tuple[str, int] = ("", 0)

    def attention(self, layer: int, q: Tensor, batch: Batch) -> Tensor:
        kind, rank = self.harm
        if (self.num_steps, layer, self.group.rank) == (3, 1, rank):
            if kind == "hang":
                time.sleep(1000)
            raise ArithmeticError("a layer broke")
        return super().attention(layer, q, batch)


def serve_with_fault(group: Group, kind: str, rank: int) -> None:
    Faulty.harm = kind, rank
    share = shard_heads(new_model("llama"), group.mesh)
    llm = LLM(share, None, make_runner=partial(Faulty, group=group), **TIGHT)
    if group.rank > 0:
        llm.engine.runner.follow()
    else:
        answer_all(llm)


def serve_different(group: Group, what: str) -> str:
    """Rank 1 has another model, or other sizes, than rank 0: the refusal."""
    model = new_model("biased")
    options = {"num_blocks": 30, "stage": "paged_online"}
    if group.rank == 1:
        match what:
            case "norm":
                model.norm.weight[0] += 1
            case "bias":
                model.layers[1].mlp.down_proj.bias[5] += 1
            case "sizes":
                model = new_model("llama")
            case "dtype":
                model = model.float()
            case "stage":
                options["stage"] = "paged_gather"
            case "num_blocks":
                options["num_blocks"] = 31
    try:
        serve(model, None, group, answer_all, **options)
    except Disagreement as error:  # on every rank at the same point: they can go on
        return str(error)
    return "no refusal"


def fail_at_work(group: Group) -> None:
    """On rank 0, between two steps: the others wait for the next one."""

    def work(llm: LLM) -> None:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), progress=False)
        raise ArithmeticError("the work broke")

    serve(new_model("llama"), None, group, work)


def pid_of(group: Group) -> int:
    return os.getpid()


def pause(group: Group, seconds: float) -> bool | None:
    """Some work, a pause without requests, and some more work."""

    def work(llm: LLM) -> bool:
        llm.generate(["The for"], progress=False)
        time.sleep(seconds)
        return llm.generate(["The while"], progress=False)[0].error is None

    return serve(*load_model("tiny"), group, work)


def threads_after_the_cpu_stage(group: Group) -> tuple[int, int]:
    """Of torch and of Numba, when Numba has started its own."""

    def work(llm: LLM) -> None:
        llm.generate(["The for"], progress=False)

    serve(*load_model("tiny"), group, work, stage="cpu")
    return torch.get_num_threads(), numba.get_num_threads()
