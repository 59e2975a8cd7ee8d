"""Measurements of the serving engine: every way computes the same, and what is said is so."""

import json
from dataclasses import asdict, replace
from itertools import chain

import pytest
import torch

from pa_tutorial.bench.engine_bench import FULL, TARGETS, Workload, measure, prefilled
from pa_tutorial.bench.engine_ways import GATHERS, WAYS, Way, attend_padded, mask_of, matmul_padded
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.runner import Runner
from pa_tutorial.viz.cpu_measured import RESULTS
from pa_tutorial.viz.engine_figures import draw_step_ways

# 45 + 8 tokens: a tail, and a new block on the way
SMALL = Workload(num_requests=3, prompt_len=45, new_tokens=8, num_layers=2, max_len=64)
PARAMS = SamplingParams(max_tokens=8)
BEFORE_PAGING = ("block_lists", "contiguous")


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """What the model says to each prompt, without any engine."""
    model = SMALL.model()
    return [model.generate(torch.tensor(prompt), 8).tolist() for prompt in SMALL.prompts()]


def tokens_of(name: str) -> list[list[int]]:
    job = prefilled(SMALL.model(), SMALL, WAYS[name])
    for _ in range(SMALL.new_tokens - 1):
        job.step()
    assert job.engine.is_idle
    return job.tokens


@pytest.mark.parametrize("name", [name for name in WAYS if name != "no_attention"])
def test_every_way_generates_what_the_model_does_alone(name: str, alone: list) -> None:
    assert tokens_of(name) == alone


def test_attention_decides_which_tokens_come(alone: list) -> None:
    """Else equal tokens would say nothing about the ways."""
    pairs = zip(chain(*alone), chain(*tokens_of("no_attention")), strict=True)
    assert sum(a != b for a, b in pairs) > SMALL.num_requests * SMALL.new_tokens / 2


@pytest.mark.parametrize("name", [*BEFORE_PAGING, *GATHERS])
def test_shorter_sequences_of_a_batch_are_masked(name: str) -> None:
    """Arrivals one after another: decode steps of different lengths, beside a prefill."""
    model = SMALL.model()
    llm = LLM(model, num_blocks=SMALL.blocks_needed, prefix_caching=False, token_budget=31)
    llm.engine.runner = WAYS[name].runner(llm.engine.runner)
    prompts = [prompt[: 20 + 9 * n] for n, prompt in enumerate(SMALL.prompts())]
    completions = llm.generate(prompts, PARAMS, [0, 2, 5], progress=False)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids[0] == model.generate(torch.tensor(prompt), 8).tolist()
    assert not any(step.error for step in llm.statistics), "no sequence was tried again alone"


@pytest.mark.parametrize("name", BEFORE_PAGING)
def test_a_new_sequence_in_old_blocks_begins_with_nothing(name: str, alone: list) -> None:
    llm = LLM(SMALL.model(), prefix_caching=False, num_blocks=5, max_num_seqs=1)
    llm.engine.runner = WAYS[name].runner(llm.engine.runner)
    completions = llm.generate(SMALL.prompts(), PARAMS, progress=False)
    assert [completion.token_ids[0] for completion in completions] == alone
    assert not any(step.error for step in llm.statistics)


@pytest.mark.parametrize("attention", [attend_padded, matmul_padded])
def test_masked_places_do_not_count(attention) -> None:
    torch.manual_seed(0)
    q, (k, v), lens = torch.randn(2, 4, 8), torch.randn(2, 2, 4, 6, 8), torch.tensor([5, 6])
    k[0, :, 5:], v[0, :, 5:] = 1e3, 1e3
    assert mask_of(torch.tensor([6, 6])) is None
    out = attention(q, k, v, mask_of(lens), 0.3)
    for sequence, seq_len in enumerate(lens):
        own = slice(sequence, sequence + 1)
        single = attention(q[own], k[own, :, :seq_len], v[own, :, :seq_len], None, 0.3)
        torch.testing.assert_close(out[own], single)


def test_a_way_that_fails_or_says_something_else_is_an_error() -> None:
    def broken(runner: Runner) -> Runner:
        runner.cache.v[0].fill_(float("nan"))
        runner.cache.write = lambda *arguments: None
        return runner

    with pytest.raises(ArithmeticError, match="NaN"):  # though the engine would go on
        prefilled(SMALL.model(), SMALL, Way("broken", runner=broken))
    wrong = {"cpu": WAYS["cpu"], "wrong": replace(WAYS["no_attention"], words="wrong")}
    with pytest.raises(ArithmeticError, match="wrong generated other tokens than cpu"):
        measure(1, SMALL, wrong)


def test_the_committed_results_are_of_the_workload_and_reach_its_targets() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["engine"]
    assert asdict(FULL).items() <= found["workload"].items()
    assert FULL.num_requests * FULL.prompt_len == 54_784, "as in the source"
    rows = {(row["name"], row["must_reach"], row["reached"]) for row in found["steps"]["targets"]}
    assert rows == {(target.name, target.limit, True) for target in TARGETS}


def test_a_run_has_every_way_and_its_figure_can_be_drawn(capsys) -> None:
    found = measure(1, SMALL)
    assert found["steps"]["times"].keys() == found["steps"]["words"].keys() == WAYS.keys()
    assert found["steps"]["best_gather"] in GATHERS
    assert "(best gather)" in capsys.readouterr().out
    assert "times as long" in draw_step_ways(found).get_suptitle()
