"""Measurements of the serving engine: every way computes the same, and what is said is so."""

import json
from dataclasses import replace
from itertools import chain

import pytest
import torch

from pa_tutorial.bench import __main__ as bench
from pa_tutorial.bench import engine_jobs, engine_memory, engine_profile, engine_steps
from pa_tutorial.bench.engine_memory import Requests, serve
from pa_tutorial.bench.engine_pasts import attend_padded, mask_of
from pa_tutorial.bench.engine_steps import TARGETS, target_rows
from pa_tutorial.bench.engine_ways import BEFORE_PAGING, GATHERS, WAYS, left_out, matmul_padded
from pa_tutorial.bench.engine_workload import FULL, Workload, offline_job, require_same_tokens
from pa_tutorial.engine import LLM
from pa_tutorial.engine.runner import Runner
from pa_tutorial.paging.reservations import Contiguous, long_tailed_requests
from pa_tutorial.paging.waste import simulate
from pa_tutorial.viz.engine_figures import draw_step_ways
from pa_tutorial.walk.ladder import STAGES

# 45 + 8 tokens: a tail, and a new block on the way
SMALL = Workload(num_requests=3, prompt_len=45, new_tokens=8, num_layers=2, max_len=64)


def generated_alone(workload: Workload) -> list[list[int]]:
    """What the model says to each prompt, without any engine."""
    model = workload.model()
    return [
        model.generate(torch.tensor(prompt), workload.new_tokens).tolist()
        for prompt in workload.prompts()
    ]


def job_of(name: str, workload: Workload = SMALL) -> list[list[int]]:
    (job,) = engine_steps.prefilled(workload, [name]).values()
    engine_steps.decode_interleaved({name: job}, workload.new_tokens - 1)
    assert job.engine.is_idle
    assert len(job.decode_ms) == workload.new_tokens - 1
    return job.tokens


@pytest.mark.parametrize("name", [name for name in WAYS if name != "no_attention"])
def test_every_way_generates_what_the_model_does_alone(name: str) -> None:
    assert job_of(name) == generated_alone(SMALL)


@pytest.mark.parametrize("name", [*BEFORE_PAGING, *GATHERS])
def test_shorter_sequences_of_a_batch_are_masked(name: str) -> None:
    """Arrivals one after another: decode steps of different lengths, beside a prefill."""
    way = WAYS[name]
    llm = LLM(SMALL.model(), num_blocks=SMALL.num_blocks, prefix_caching=False, token_budget=31)
    llm.engine.runner = way.runner(llm.engine.runner)
    prompts = [prompt[: 20 + 9 * n] for n, prompt in enumerate(SMALL.prompts())]
    completions = llm.generate(prompts, SMALL.params, [0, 2, 5], progress=False)
    model = SMALL.model()
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = model.generate(torch.tensor(prompt), SMALL.new_tokens).tolist()
        assert completion.token_ids[0] == expected
    assert not any(step.error for step in llm.statistics), "no sequence was tried again alone"


def test_a_way_that_fails_is_an_error_though_the_engine_would_go_on() -> None:
    def broken(runner: Runner) -> Runner:
        runner.cache.v[0].fill_(float("nan"))
        runner.cache.write = lambda *arguments: None
        return runner

    with pytest.raises(ArithmeticError, match="NaN"):
        offline_job(SMALL.model(), SMALL, runner=broken).prefill()


@pytest.mark.parametrize("attention", [attend_padded, matmul_padded])
def test_masked_places_do_not_count(attention) -> None:
    torch.manual_seed(0)
    q, (k, v), lens = torch.randn(2, 4, 8), torch.randn(2, 2, 4, 6, 8), torch.tensor([5, 6])
    k[0, :, 5:], v[0, :, 5:] = 1e3, 1e3
    assert mask_of(torch.tensor([6, 6])) is None
    out = attention(q, k, v, mask_of(lens), 0.3)
    for sequence, seq_len in enumerate(lens):
        own = slice(sequence, sequence + 1)
        alone = attention(q[own], k[own, :, :seq_len], v[own, :, :seq_len], None, 0.3)
        torch.testing.assert_close(out[own], alone)


@pytest.mark.parametrize("name", BEFORE_PAGING)
def test_a_new_sequence_in_old_blocks_begins_with_nothing(name: str) -> None:
    options = {"num_blocks": SMALL.blocks_per_request + 1, "max_num_seqs": 1}
    llm = LLM(SMALL.model(), prefix_caching=False, **options)
    llm.engine.runner = WAYS[name].runner(llm.engine.runner)
    completions = llm.generate(SMALL.prompts(), SMALL.params, progress=False)
    assert [completion.token_ids[0] for completion in completions] == generated_alone(SMALL)
    assert not any(step.error for step in llm.statistics)


def test_attention_decides_which_tokens_come() -> None:
    """Else equal tokens would say nothing about the ways."""
    with_attention, without = generated_alone(SMALL), job_of("no_attention")
    pairs = zip(chain(*with_attention), chain(*without), strict=True)
    assert sum(a != b for a, b in pairs) > SMALL.num_requests * SMALL.new_tokens / 2


def test_other_tokens_are_an_error_that_names_the_way() -> None:
    with pytest.raises(ArithmeticError, match="b generated other tokens than a"):
        require_same_tokens({"a": [[1]], "c": [[1]], "b": [[2]]})


def test_steps_are_interleaved() -> None:
    calls = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def decode(self) -> None:
            calls.append(self.name)

    engine_steps.decode_interleaved({name: Counted(name) for name in "abc"}, 5)
    rounds = [calls[i : i + 3] for i in range(0, 15, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def made_up(**milliseconds: float) -> dict[str, dict[str, float]]:
    return {name: {"median_ms": time} for name, time in milliseconds.items()}


def test_targets_are_those_that_were_set() -> None:
    assert [(target.above[0], target.limit) for target in TARGETS] == [
        ("block_lists", 15.0),
        ("contiguous", 6.0),
        ("gather_blocks_sdpa", 2.0),
    ]
    assert all(target.below == ("cpu",) and target.at_least for target in TARGETS)


def test_ratio_is_to_the_fastest_gather_and_a_missed_target_is_told() -> None:
    gathers = dict(zip(GATHERS, (50.0, 40.0, 30.0, 60.0), strict=True))
    times = made_up(cpu=10.0, block_lists=151.0, contiguous=53.0, **gathers)
    rows = target_rows(times)
    assert [row["ratio"] for row in rows] == [15.1, 5.3, 3.0]
    assert [row["reached"] for row in rows] == [True, False, True]
    assert engine_steps.best_gather(times) == "gather_tokens_sdpa"


def test_every_paged_stage_is_measured_or_left_out_with_a_reason() -> None:
    paged = {name for name, stage in STAGES.items() if stage.layout}
    assert paged == {*left_out(), *(name for name in WAYS if name in STAGES)}


def test_full_workload_is_that_of_the_source() -> None:
    assert FULL.num_requests * FULL.prompt_len == 54_784
    assert FULL.completion_tokens == 1024
    assert {len(prompt) for prompt in FULL.prompts()} == {856}
    assert (FULL.system_prompt_len, FULL.block_size) == (512, 16)


def test_shared_prompts_begin_alike_and_then_differ() -> None:
    first, second, _ = replace(SMALL, shared_len=16).prompts()
    assert first[:16] == second[:16]
    assert first[16:] != second[16:]


def test_jobs_generate_the_same_tokens_and_find_the_shared_prompt() -> None:
    times = made_up(**dict.fromkeys(WAYS, 2.0))
    steps = {"best_gather": "gather_blocks_sdpa", "times": times}
    jobs = engine_jobs.measure(SMALL, steps, generated_alone(SMALL))
    without, with_caching = jobs["shared_prompt"]
    assert without["hit_rate"] == 0
    assert with_caching["hit_rate"] == round(2 * 16 / (3 * 45), 4), "16 tokens, found twice"
    names = ["block_lists", "contiguous", "gather_blocks_sdpa", *engine_jobs.PAGED]
    assert [row["name"] for row in jobs["offline"]] == names
    per_second = 1e3 * SMALL.num_requests / 2.0
    assert {row["decode_tokens_per_s"] for row in jobs["offline"]} == {per_second}
    assert [row["name"] for row in jobs["online"]] == names
    assert all(row["tokens_per_s"] > 0 for row in (*jobs["online"], jobs["one_at_a_time"]))
    with pytest.raises(ArithmeticError, match="one at a time generated other tokens"):
        engine_jobs.measure(SMALL, steps, [[0]])


def test_a_block_of_max_len_is_a_contiguous_reservation() -> None:
    """The simulation of notebook 02 lets as many run."""
    drawn = long_tailed_requests(20, seed=3, max_len=64)
    prompts = [[n] * request.prompt_len for n, request in enumerate(drawn)]
    requests = Requests("", prompts, [request.output_len for request in drawn])
    found = serve(requests, 4 * 64 + 5, block_size=64, max_len=64, prefix_caching=False)
    simulated = simulate(drawn, Contiguous(4 * 64 + 5, "max", max_len=64))
    assert found["most_running"] == simulated.peak_running == 4
    assert found["preemptions"] == 0


def test_who_finishes_with_a_step_ran_in_it() -> None:
    requests = Requests("", [[1, 2, 3]] * 6, [1] * 6)
    found = serve(requests, 4 * 64, block_size=64, max_len=64, prefix_caching=False)
    assert (found["most_running"], found["steps"]) == (4, 2)


def test_more_run_at_once_in_blocks_and_most_with_a_shared_prompt() -> None:
    workload = replace(SMALL, num_requests=12, prompt_len=40, new_tokens=9)
    memory = engine_memory.measure(workload, reserved=3)
    assert memory["bytes"] == 3 * 64 * 2 * 2 * 8 * 32 * 4
    found = {(row["requests"], row["way"]): row["most_running"] for row in memory["rows"]}
    equal, shared, mixed = dict.fromkeys(row["requests"] for row in memory["rows"])
    assert [found[kind, "contiguous"] for kind in (equal, shared, mixed)] == [3, 3, 3]
    assert found[equal, "paged"] == 4, "3 blocks of 16 each, of 12"
    assert found[shared, "paged"] == 4
    assert found[shared, "paged, prefix caching"] == 5, "one block shared, two of their own"
    assert found[mixed, "paged"] > 3


def test_the_innermost_span_counts() -> None:
    def span(name: str, start: float, ms: float) -> dict:
        return {"name": name, "start_ms": start, "ms": ms}

    spans = [span("b", 3, 6), span("step", 0, 20), span("c", 5, 2), span("a", 2, 10)]
    assert engine_profile.flattened(spans) == [
        span("step", 0, 2),
        span("a", 2, 1),
        span("b", 3, 2),
        span("c", 5, 2),
        span("b", 7, 2),
        span("a", 9, 3),
        span("step", 12, 8),
    ]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("benchmarks")
    bench.main(["--quick", "--only", "engine", "--out", str(folder)])
    (path,) = folder.iterdir()
    return json.loads(path.read_text(encoding="utf-8"))["engine"]


def test_quick_run_has_every_part(quick: dict) -> None:
    assert quick.keys() == {"workload", "steps", "jobs", "memory", "batch_size", "profile"}
    assert quick["steps"]["times"].keys() == WAYS.keys()
    for result in quick["profile"].values():
        assert sum(span["ms"] for span in result["spans"]) == pytest.approx(result["ms"], abs=0.01)
        ends = [span["start_ms"] + span["ms"] for span in result["spans"]]
        starts = [span["start_ms"] for span in result["spans"]]
        assert starts[1:] == pytest.approx(ends[:-1], abs=0.002)
    assert quick["profile"]["block_lists"]["parts"]["build the past"] > 0
    assert quick["profile"]["cpu"]["parts"]["build the past"] == 0
    assert [row["num_running"] for row in quick["batch_size"]] == [1, 4]


def test_figure_can_be_drawn_from_any_run(quick: dict) -> None:
    figure = draw_step_ways(quick)
    figure.draw_without_rendering()
    assert len(figure.get_suptitle().split()) >= 6


def test_traces_can_be_kept(tmp_path) -> None:
    engine_profile.measure(SMALL, tmp_path / "traces")
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {
        "block_lists.json",
        "cpu.json",
    }
