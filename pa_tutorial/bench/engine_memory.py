"""How many requests run at once in a fixed memory: contiguous reservations, and blocks.

The scheduler runs as it is. Only the model is left out: it would change nothing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.bench.engine_workload import Workload
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine.batch import Batch
from pa_tutorial.paging.reservations import long_tailed_requests

RESERVED = 16  # sequences for which the memory is enough if each reserves max_len


class NoModel:
    """Takes the place of the engine's Runner: every next token is 0."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def run(self, batch: Batch) -> Tensor:
        return torch.zeros(len(batch.sampled), self.vocab_size)


@dataclass(frozen=True)
class Requests:
    """prompts: token ids. new_tokens: how many each generates."""

    words: str
    prompts: Sequence[Sequence[int]]
    new_tokens: Sequence[int]


def requests_of(workload: Workload) -> tuple[Requests, ...]:
    """Equal lengths; equal lengths with a prompt that all share; a few long among many short."""
    shared_len = workload.system_prompt_len
    alike = replace(workload, shared_len=shared_len).prompts()
    equal = [workload.new_tokens] * workload.num_requests
    mixed = long_tailed_requests(2 * workload.num_requests, seed=0, max_len=workload.max_len)
    random_tokens = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(256, (request.prompt_len,), generator=random_tokens).tolist()
        for request in mixed
    ]
    each = f"{workload.prompt_len} + {workload.new_tokens} tokens each"
    return (
        Requests(each, workload.prompts(), equal),
        Requests(f"the same, {shared_len} of them shared", alike, equal),
        Requests("few long, many short", prompts, [request.output_len for request in mixed]),
    )


def serve(
    requests: Requests, num_slots: int, block_size: int, max_len: int, prefix_caching: bool
) -> dict[str, object]:
    """Serve all requests, and say how many ran at once.

    block_size  if it is max_len, each sequence reserves all that it could ever need
    returns     most_running; mean_running, while others wait if any do; preemptions; steps
    """
    config = TinyConfig(num_layers=1, num_heads=1, num_kv_heads=1, head_size=4, max_len=max_len)
    num_requests = len(requests.prompts)
    engine = Engine(
        TinyLM(config),
        num_blocks=num_slots // block_size + 1,  # and the null block
        block_size=block_size,
        prefix_caching=prefix_caching,
        token_budget=num_requests * max_len,
        max_num_seqs=num_requests,
    )
    engine.runner = NoModel(config.vocab_size)
    for prompt, new_tokens in zip(requests.prompts, requests.new_tokens, strict=True):
        engine.add(prompt, SamplingParams(max_tokens=new_tokens))
    running = []
    while not engine.is_idle:
        engine.step()
        running.append(len(engine.scheduler.plan))  # also those who finished with this step
    pairs = zip(running, engine.statistics, strict=True)
    crowded = [number for number, step in pairs if step.num_waiting] or running
    return {
        "most_running": max(running),
        "mean_running": round(sum(crowded) / len(crowded), 2),
        "preemptions": engine.statistics[-1].num_preemptions,
        "steps": len(running),
    }


def measure(workload: Workload, reserved: int = RESERVED) -> dict[str, object]:
    """memory: its size; rows: kind of requests, way, and what `serve` found."""
    num_slots = reserved * workload.max_len
    ways = {
        "contiguous": {"block_size": workload.max_len, "prefix_caching": False},
        "paged": {"block_size": workload.block_size, "prefix_caching": False},
        "paged, prefix caching": {"block_size": workload.block_size, "prefix_caching": True},
    }
    rows = [
        {"requests": requests.words, "num_requests": len(requests.prompts), "way": way}
        | serve(requests, num_slots, max_len=workload.max_len, **options)
        for requests in requests_of(workload)
        for way, options in ways.items()
    ]
    bytes_per_token = 2 * 4 * workload.num_layers * workload.num_heads * workload.head_size
    return {
        "bytes": num_slots * bytes_per_token,
        "slots": num_slots,
        "max_len": workload.max_len,
        "rows": rows,
    }
