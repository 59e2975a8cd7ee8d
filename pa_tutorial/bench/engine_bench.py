"""Notebook 26: a decode step of a serving engine, for each way to store K and V.

Source of the workload: the rosellm project, "paged attention in rosellm": 64 requests, 54,784
prompt tokens and 1,024 new ones.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from tqdm import tqdm

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.bench.engine_ways import GATHERS, WAYS, Way
from pa_tutorial.bench.timing import interleaved, table
from pa_tutorial.engine import Engine, Request, SamplingParams
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.paging.block_pages import BlockPages

SHARPER = 4.0  # without it, q and k of random weights would attend to all tokens equally
LOUDER = 8.0  # without it, the output of attention wouldn't change the next token
SETTLE_SECONDS = 3.0  # meanwhile the system reclaims the memory of the prefill


@dataclass(frozen=True)
class Workload:
    """The number and lengths of requests, and the sizes of the model."""

    num_requests: int = 64
    prompt_len: int = 856
    new_tokens: int = 16
    num_layers: int = 4
    num_heads: int = 8
    head_size: int = 32
    max_len: int = 1024
    block_size: int = 16

    @property
    def blocks_needed(self) -> int:
        """Blocks for all requests at once, plus the null block."""
        # The last generated token is never fed back.
        longest = self.prompt_len + self.new_tokens - 1
        return self.num_requests * divide_round_up(longest, self.block_size) + 1

    def prompts(self) -> list[list[int]]:
        """Random bytes, the same each time."""
        rng = random.Random(0)
        of_one = range(self.prompt_len)
        return [[rng.randrange(256) for _ in of_one] for _ in range(self.num_requests)]

    def model(self) -> TinyLM:
        """Random weights, chosen so that wrong attention changes the generated tokens."""
        heads = {"num_heads": self.num_heads, "num_kv_heads": self.num_heads}
        heads |= {"num_layers": self.num_layers, "head_size": self.head_size}
        config = TinyConfig(**heads, max_len=self.max_len)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = TinyLM(config).requires_grad_(False)
        for layer in model.layers:
            layer.to_q.weight.mul_(SHARPER)
            layer.to_k.weight.mul_(SHARPER)
            layer.to_out.weight.mul_(LOUDER)
        return model


FULL = Workload()


@dataclass
class Job:
    """All requests offline: one step computes all prompts, then every step decodes all of them."""

    engine: Engine
    requests: list[Request]

    def step(self) -> None:
        """Raises ArithmeticError if the step fails, because the engine would try its sequences
        again one by one, which isn't what we measure."""
        if error := self.engine.step().error:
            raise ArithmeticError(error)

    @property
    def tokens(self) -> list[list[int]]:
        """The generated tokens of each request."""
        return [request.samples[0].generated for request in self.requests]


def prefilled(model: TinyLM, workload: Workload, way: Way) -> Job:
    """After the step that computes all prompts."""
    engine = Engine(
        model,
        BlockPages(workload.blocks_needed, workload.block_size, prefix_caching=False),
        way.backend,
        token_budget=workload.num_requests * workload.prompt_len,
        max_num_seqs=workload.num_requests,
    )
    if way.runner is not None:
        engine.runner = way.runner(engine.runner)
    params = SamplingParams(max_tokens=workload.new_tokens)
    job = Job(engine, [engine.add(prompt, params) for prompt in workload.prompts()])
    job.step()
    return job


def measure(
    rounds: int, workload: Workload = FULL, ways: Mapping[str, Way] = WAYS
) -> dict[str, object]:
    """workload; steps: times (name -> times of a decode step), words, best_gather. Prints a table.

    Every way runs the whole job once, with new_tokens - 1 decode steps; the steps of all ways are
    interleaved, and the first isn't counted. So `rounds` has no effect. Raises ArithmeticError,
    naming the way, if one doesn't generate the same tokens as the stage cpu.
    """
    model, counted = workload.model(), workload.new_tokens - 2
    bar = tqdm(ways.items(), desc="prefill", unit="way")
    jobs = {name: prefilled(model, workload, way) for name, way in bar}
    time.sleep(SETTLE_SECONDS if workload is FULL else 0)
    times = interleaved({name: job.step for name, job in jobs.items()}, counted)
    for name in jobs.keys() - {"no_attention"}:
        if jobs[name].tokens != jobs["cpu"].tokens:
            raise ArithmeticError(f"{name} generated other tokens than cpu")
    steps = {
        "rounds": counted,
        "times": times,
        "words": {name: way.words for name, way in ways.items()},
        "best_gather": min(GATHERS, key=lambda name: times[name]["median_ms"]),
    }
    print(steps_table(steps))
    return {"workload": asdict(workload), "steps": steps}


def steps_table(steps: Mapping) -> str:
    """Every way with its time, and the ratio to the time of the stage cpu."""
    cpu = steps["times"]["cpu"]["median_ms"]
    lines = [["decode step", "ms", "lowest", "highest", "times cpu"]]
    for name, time_of in steps["times"].items():
        words = steps["words"][name] + " (best gather)" * (name == steps["best_gather"])
        milliseconds = (f"{ms:.1f}" for ms in time_of.values())
        lines.append([words, *milliseconds, f"{time_of['median_ms'] / cpu:.2f}"])
    return table(lines)
