"""Whole jobs of the engine: one request at a time, offline, online, and with shared prompts."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pa_tutorial.bench.engine_ways import BEFORE_PAGING, WAYS
from pa_tutorial.bench.engine_workload import Workload, require_same_tokens
from pa_tutorial.engine import LLM, Engine

PAGED = ("paged_gather", "paged_online", "cpu")
TOKEN_BUDGET = 8192  # of a step: some prompts, and all that decode


def tokens_per_s(workload: Workload, seconds: float) -> dict[str, float]:
    return {
        "seconds": round(seconds, 3),
        "tokens_per_s": round(workload.completion_tokens / seconds, 1),
    }


def one_at_a_time(workload: Workload) -> tuple[dict[str, object], list]:
    """The engine with a place for one sequence: a request waits until all before it are done."""
    engine = Engine(
        workload.model(),
        "cpu",
        num_blocks=workload.blocks_per_request + 1,
        block_size=workload.block_size,
        prefix_caching=False,
        token_budget=workload.prompt_len,
        max_num_seqs=1,
    )
    requests = [engine.add(prompt, workload.params) for prompt in workload.prompts()]
    decode_ms = []
    start = time.perf_counter()
    while not engine.is_idle:
        before = time.perf_counter()
        step = engine.step()
        if step.num_decode:
            decode_ms.append(1e3 * (time.perf_counter() - before))
    row = tokens_per_s(workload, time.perf_counter() - start)
    row |= {"decode_tokens_per_s": round(1e3 / statistics.median(decode_ms), 1)}
    return row, [request.samples[0].generated for request in requests]


def served(
    workload: Workload,
    name: str,
    arrivals: Sequence[int] | None = None,
    prefix_caching: bool = False,
) -> tuple[dict[str, object], list]:
    """All requests of the workload, through LLM.generate; with a step budget as servers have it."""
    way = WAYS[name]
    llm = LLM(
        workload.model(),
        stage=way.stage,
        num_blocks=workload.num_blocks,
        block_size=workload.block_size,
        prefix_caching=prefix_caching,
        token_budget=TOKEN_BUDGET,
        max_num_seqs=workload.num_requests,
    )
    if way.runner is not None:
        llm.engine.runner = way.runner(llm.engine.runner)
    prompts = workload.prompts()
    start = time.perf_counter()
    completions = llm.generate(prompts, workload.params, arrivals, progress=False)
    seconds = time.perf_counter() - start
    for step in llm.statistics:  # its sequences were tried again: another measurement
        if step.error:
            raise ArithmeticError(step.error)
    row = {"name": name, "words": way.words}
    row |= tokens_per_s(workload, seconds)
    row |= {
        "steps": len(llm.statistics),
        "most_running": max(step.num_running for step in llm.statistics),
        "hit_rate": round(llm.statistics[-1].hit_rate, 4),
    }
    return row, [completion.token_ids[0] for completion in completions]


def with_shared_prompt(workload: Workload) -> list[dict[str, object]]:
    """The prompts begin alike: without and with prefix caching, offline."""
    alike = replace(workload, shared_len=workload.system_prompt_len)
    rows, tokens = [], {}
    for prefix_caching in (False, True):
        row, tokens[f"prefix caching {prefix_caching}"] = served(alike, "cpu", None, prefix_caching)
        rows.append(row | {"prefix_caching": prefix_caching, "shared_len": alike.shared_len})
    require_same_tokens(tokens)
    return rows


def measure(workload: Workload, steps: Mapping, expected: list) -> dict[str, object]:
    """Every job once.

    steps     of engine_steps: which gather is the best, and the time of a decode step of each way
    expected  the tokens of each request; ArithmeticError if a job generates others
    """
    single, tokens = one_at_a_time(workload)
    require_same_tokens({"steps": expected, "one at a time": tokens})
    offline, online = [], []
    names = (*BEFORE_PAGING, steps["best_gather"], *PAGED)
    for name in names:
        row, tokens = served(workload, name)
        require_same_tokens({"steps": expected, f"{name} offline": tokens})
        decode = 1e3 * workload.num_requests / steps["times"][name]["median_ms"]
        offline.append(row | {"decode_tokens_per_s": round(decode, 1)})
    for name in names:
        row, tokens = served(workload, name, range(workload.num_requests))
        require_same_tokens({"steps": expected, f"{name} online": tokens})
        online.append(row)
    return {
        "repetitions": 1,
        "token_budget": TOKEN_BUDGET,
        "one_at_a_time": single,
        "offline": offline,
        "online": online,
        "shared_prompt": with_shared_prompt(workload),
    }
