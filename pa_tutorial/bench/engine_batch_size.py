"""Time of a decode step by the number of sequences that run, with the stage cpu."""

from dataclasses import replace

from tqdm import tqdm

from pa_tutorial.attention.tiny_lm import TinyLM
from pa_tutorial.bench.engine_memory import NoModel
from pa_tutorial.bench.engine_workload import Workload, offline_job
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.engine import Engine
from pa_tutorial.paging.kv_cache import PagedKVCache

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_COUNTS = (1, 4)


def prepared_engine(model: TinyLM, workload: Workload, cache: PagedKVCache | None) -> Engine:
    """An engine whose sequences all decode next. K and V of the prompts are random numbers: the
    time of a step does not depend on them, and computing them would take minutes.

    cache  of a larger engine, to be used by this one too; what one writes the other may overwrite
    """
    job = offline_job(model, workload)
    runner = job.engine.runner
    if cache is None:
        for tensor in (*runner.cache.k, *runner.cache.v):
            tensor.normal_()
    else:
        runner.cache = cache
    job.engine.runner = NoModel(model.config.vocab_size)
    job.prefill()
    job.engine.runner = runner
    return job.engine


def measure(
    workload: Workload, rounds: int, counts: tuple[int, ...] = COUNTS
) -> list[dict[str, object]]:
    """num_running, seq_len at the first step, and times of a step, interleaved over the counts."""
    rounds = min(rounds, workload.max_len - workload.prompt_len - 2)
    model, cache = workload.model(), None
    engines = {}
    for count in tqdm(sorted(counts, reverse=True), desc="running at once", unit="engine"):
        of_count = replace(workload, num_requests=count, new_tokens=rounds + 3)
        engines[count] = prepared_engine(model, of_count, cache)
        cache = engines[count].runner.cache
    times = interleaved({str(count): engines[count].step for count in counts}, rounds)
    rows = []
    for count in counts:
        steps = engines[count].statistics[1:]
        if not all(step.num_decode == count for step in steps):
            raise ArithmeticError(f"not all of {count} sequences decoded in every step")
        of_count = times[str(count)]
        rows.append(
            {
                "num_running": count,
                "seq_len": workload.prompt_len + 1,
                **of_count,
                "ms_per_request": round(of_count["median_ms"] / count, 4),
                "tokens_per_s": round(1e3 * count / of_count["median_ms"], 1),
            }
        )
    return rows
