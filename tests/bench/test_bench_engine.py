"""Measurements of the serving engine: every way computes the same tokens."""

import pytest

from pa_tutorial.bench.engine_bench import Workload, measure
from pa_tutorial.bench.engine_ways import GATHERS, WAYS
from pa_tutorial.viz.engine_figures import draw_step_ways

# 45 + 8 tokens: a tail, and a new block on the way. The CPU kernel for heads of 64 dimensions is
# compiled for the ladder too.
SIZES = {"num_layers": 2, "head_size": 64, "max_len": 64}
SMALL = Workload(num_requests=3, prompt_len=45, new_tokens=8, **SIZES)


def test_a_way_that_generates_other_tokens_is_refused() -> None:
    wrong = {"cpu": WAYS["cpu"], "wrong": WAYS["no_attention"]}
    with pytest.raises(ArithmeticError, match="wrong generated other tokens than cpu"):
        measure(1, SMALL, wrong)


def test_a_run_has_every_way_and_its_figure_can_be_drawn(capsys) -> None:
    found = measure(1, SMALL)  # and all, but one without attention, generate the same
    assert found["steps"]["times"].keys() == found["steps"]["words"].keys() == WAYS.keys()
    assert found["steps"]["best_gather"] in GATHERS
    assert "(best gather)" in capsys.readouterr().out
    assert "times as long" in draw_step_ways(found).get_suptitle()
