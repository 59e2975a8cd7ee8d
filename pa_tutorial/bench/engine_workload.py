"""The workload of the section `engine`: a model, its prompts, and jobs whose steps are timed.

Source: the rosellm project, "paged attention in rosellm": 64 requests, 54,784 prompt tokens and
1,024 new ones.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.bench.timing import host_milliseconds
from pa_tutorial.engine import Engine, Request, SamplingParams
from pa_tutorial.kernels.geometry import divide_round_up

SHARPER = 4.0  # q and k of random weights would attend to all tokens alike
LOUDER = 8.0  # and what attention returns would not change the next token


@dataclass(frozen=True)
class Workload:
    """How many requests, how long, and the sizes of the model.

    shared_len  so many of the first tokens are the same in all prompts
    """

    num_requests: int = 64
    prompt_len: int = 856
    new_tokens: int = 16
    shared_len: int = 0
    num_layers: int = 4
    num_heads: int = 8
    head_size: int = 32
    max_len: int = 1024
    block_size: int = 16

    @property
    def blocks_per_request(self) -> int:
        # The last generated token is never fed back.
        return divide_round_up(self.prompt_len + self.new_tokens - 1, self.block_size)

    @property
    def num_blocks(self) -> int:
        """For all requests at once, and the null block."""
        return self.num_requests * self.blocks_per_request + 1

    @property
    def completion_tokens(self) -> int:
        return self.num_requests * self.new_tokens

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.new_tokens)

    @property
    def system_prompt_len(self) -> int:
        """Of a second workload, whose prompts begin alike: 512 of 856 tokens, all full blocks."""
        return int(0.6 * self.prompt_len) // self.block_size * self.block_size

    def prompts(self) -> list[list[int]]:
        """Random bytes, the same each time."""
        rng = random.Random(0)
        shared = [rng.randrange(256) for _ in range(self.shared_len)]
        own_len = self.prompt_len - self.shared_len
        return [
            shared + [rng.randrange(256) for _ in range(own_len)] for _ in range(self.num_requests)
        ]

    def model(self) -> TinyLM:
        """Random weights, such that a wrong attention changes the tokens that are generated."""
        config = TinyConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_size=self.head_size,
            max_len=self.max_len,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = TinyLM(config).requires_grad_(False)
        for layer in model.layers:
            layer.to_q.weight.mul_(SHARPER)
            layer.to_k.weight.mul_(SHARPER)
            layer.to_out.weight.mul_(LOUDER)
        return model


FULL = Workload()
QUICK = Workload(num_requests=4, prompt_len=70, new_tokens=4, num_layers=2, max_len=128)


@dataclass
class Job:
    """All requests offline: one step computes all prompts, and then every step decodes for all.

    decode_ms  of every decode step, in order
    """

    engine: Engine
    requests: list[Request]
    decode_ms: list[float] = field(default_factory=list)

    def prefill(self) -> None:
        self.step()

    def decode(self) -> None:
        self.decode_ms.append(host_milliseconds(self.step))

    def step(self) -> None:
        """ArithmeticError for a step that failed: the engine would try its sequences again, each
        alone, and that is another measurement."""
        if error := self.engine.step().error:
            raise ArithmeticError(error)

    @property
    def tokens(self) -> list[list[int]]:
        """What was generated, for each request."""
        return [request.samples[0].generated for request in self.requests]


def offline_job(
    model: TinyLM,
    workload: Workload,
    stage: str = "cpu",
    runner: Callable | None = None,
    prefix_caching: bool = False,
) -> Job:
    """An engine with all requests waiting.

    runner  makes, of the engine's Runner, what shall run the steps in its place
    """
    engine = Engine(
        model,
        stage,
        num_blocks=workload.num_blocks,
        block_size=workload.block_size,
        prefix_caching=prefix_caching,
        token_budget=workload.num_requests * workload.prompt_len,
        max_num_seqs=workload.num_requests,
    )
    if runner is not None:
        engine.runner = runner(engine.runner)
    requests = [engine.add(prompt, workload.params) for prompt in workload.prompts()]
    return Job(engine, requests)


def require_same_tokens(generated: dict[str, Sequence]) -> None:
    """Raise ArithmeticError, naming the way, if one generated other tokens than the first one."""
    (first, expected), *other_ways = generated.items()
    for name, tokens in other_ways:
        if tokens != expected:
            raise ArithmeticError(f"{name} generated other tokens than {first}")
