"""Whole jobs of the engine: one request at a time, online, and with a prompt that all share."""

import statistics
import time
from dataclasses import replace

from pa_tutorial.bench.engine_steps import job_row
from pa_tutorial.bench.engine_ways import WAYS
from pa_tutorial.bench.engine_workload import Workload, offline_job, require_same_tokens
from pa_tutorial.engine import LLM, Engine

ONLINE = ("block_lists", "contiguous", "cpu")


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


def online(workload: Workload, name: str) -> tuple[dict[str, object], list]:
    """A request arrives before every step. A step has room for one prompt and all that decode."""
    way = WAYS[name]
    llm = LLM(
        workload.model(),
        stage=way.stage,
        num_blocks=workload.num_blocks,
        block_size=workload.block_size,
        prefix_caching=False,
        token_budget=workload.prompt_len + workload.num_requests,
        max_num_seqs=workload.num_requests,
    )
    if way.runner is not None:
        llm.engine.runner = way.runner(llm.engine.runner)
    prompts, arrivals = workload.prompts(), range(workload.num_requests)
    start = time.perf_counter()
    completions = llm.generate(prompts, workload.params, arrivals, progress=False)
    row = {"name": name, "words": way.words}
    row |= tokens_per_s(workload, time.perf_counter() - start)
    row |= {
        "steps": len(llm.statistics),
        "most_running": max(step.num_running for step in llm.statistics),
    }
    return row, [completion.token_ids[0] for completion in completions]


def with_shared_prompt(workload: Workload) -> list[dict[str, object]]:
    """The prompts begin alike: without and with prefix caching, offline."""
    alike = replace(workload, shared_len=workload.system_prompt_len)
    model, rows, tokens = workload.model(), [], {}
    for prefix_caching in (False, True):
        job = offline_job(model, alike, prefix_caching=prefix_caching)
        job.prefill()
        for _ in range(alike.new_tokens - 1):
            job.decode()
        first = job.engine.statistics[0]
        rows.append(
            job_row("cpu", WAYS["cpu"].words, job, alike)
            | {
                "prefix_caching": prefix_caching,
                "shared_len": alike.shared_len,
                "hit_rate": round(first.hit_rate, 4),
                "blocks_used": first.blocks_used,
            }
        )
        tokens[f"prefix caching {prefix_caching}"] = job.tokens
    require_same_tokens(tokens)
    return rows


def measure(workload: Workload, expected: list) -> dict[str, object]:
    """Every job once.

    expected  the tokens of each request, as the offline job generated them; ArithmeticError if a
              job generates others
    """
    single, tokens = one_at_a_time(workload)
    require_same_tokens({"offline": expected, "one at a time": tokens})
    rows = []
    for name in ONLINE:
        row, tokens = online(workload, name)
        require_same_tokens({"offline": expected, f"{name} online": tokens})
        rows.append(row)
    return {
        "repetitions": 1,
        "one_at_a_time": single,
        "online": rows,
        "shared_prompt": with_shared_prompt(workload),
    }
