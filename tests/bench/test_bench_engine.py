"""Measurements of the serving engine: every way computes the same tokens."""

import json
from dataclasses import asdict

import pytest
import torch

from pa_tutorial.bench.engine_bench import FULL, Workload, measure, prefilled
from pa_tutorial.bench.engine_ways import GATHERS, WAYS
from pa_tutorial.viz.cpu_measured import RESULTS
from pa_tutorial.viz.engine_figures import draw_step_ways

# 45 + 8 tokens: a tail, and a new block on the way. The CPU kernel for heads of 64 dimensions is
# compiled for the ladder too.
SIZES = {"num_layers": 2, "head_size": 64, "max_len": 64}
SMALL = Workload(num_requests=3, prompt_len=45, new_tokens=8, **SIZES)


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


def test_a_way_that_generates_other_tokens_is_refused() -> None:
    wrong = {"cpu": WAYS["cpu"], "wrong": WAYS["no_attention"]}
    with pytest.raises(ArithmeticError, match="wrong generated other tokens than cpu"):
        measure(1, SMALL, wrong)


def test_the_workload_of_the_committed_results_is_that_of_the_source() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["engine"]
    assert asdict(FULL) == found["workload"]
    assert FULL.num_requests * FULL.prompt_len == 54_784
    assert found["steps"]["times"].keys() >= WAYS.keys()


def test_a_run_has_every_way_and_its_figure_can_be_drawn(capsys) -> None:
    found = measure(1, SMALL)
    assert found["steps"]["times"].keys() == found["steps"]["words"].keys() == WAYS.keys()
    assert found["steps"]["best_gather"] in GATHERS
    assert "(best gather)" in capsys.readouterr().out
    assert "times as long" in draw_step_ways(found).get_suptitle()
