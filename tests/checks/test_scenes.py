"""The scenes of the engine: ours plays them right, and a wrong one is caught."""

import pytest
import torch

from pa_tutorial.checks import attempt
from pa_tutorial.checks.engine_alone import Alone, trained
from pa_tutorial.checks.engine_check import MOST_STEPS, WIDTH, Served, scene_trial
from pa_tutorial.checks.engine_scenes import SCENES
from pa_tutorial.checks.running import judge
from pa_tutorial.engine.engine import Engine

CLEAR = 1e-3  # far above the rounding of float32, so that no other machine chooses otherwise


@pytest.mark.engine
@pytest.mark.parametrize("name", SCENES)
def test_engine_plays_the_scene_as_each_request_alone(name: str) -> None:
    case, comparisons = judge(scene_trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_fits_into_the_comparison(name: str) -> None:
    alone = Alone()
    SCENES[name].play(alone)
    rows = alone.rows()
    assert list(rows) == alone.names()
    assert max(map(len, rows.values())) <= WIDTH
    assert SCENES[name].meaning.endswith(".")


@pytest.mark.parametrize("name", SCENES)
def test_every_greedy_choice_of_a_scene_is_clear(name: str) -> None:
    alone = Alone()
    SCENES[name].play(alone)
    for request, (prompt, params) in alone.asked.items():
        generated = alone.rows()[f"{request}, sample 0"]
        if params.temperature or not generated:
            continue
        tokens = prompt + [int(token) for token in generated]
        scores = trained()(torch.tensor(tokens[:-1]))[len(prompt) - 1 :]
        best = scores.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > CLEAR


def failed(engine_class: type) -> set[str]:
    return {case.name for case in attempt("engine", engine_class).cases if not case.passed}


def test_another_engine_may_be_checked() -> None:
    class Forgetful(Engine):
        """Never finds a prefix again."""

        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **(options | {"prefix_caching": False}))

    names = failed(Forgetful)
    assert {"shared_prefix", "whole_prompt_in_the_cache"} <= names
    assert not {"one_request", "prompt_in_chunks"} & names


def test_an_engine_that_never_ends_is_stopped() -> None:
    class Idle(Engine):
        def step(self) -> object:
            self.statistics.append(self._count(None))
            return self.statistics[-1]

    trial = scene_trial("one_request")
    case, _ = judge(trial, Idle)
    assert not case.passed
    served = Served(Idle)
    SCENES["one_request"].play(served)
    assert served.num_steps == MOST_STEPS


def test_a_block_that_is_not_given_back_is_seen() -> None:
    class Leaks(Engine):
        def cancel(self, request: object) -> None:
            self.allocator.allocate()
            super().cancel(request)

    assert failed(Leaks) == {"cancelled"}


def test_a_failure_names_the_row() -> None:
    class Late(Engine):
        def add(self, prompt: list[int], *arguments: object) -> object:
            return super().add([*prompt[:-1], prompt[-1] ^ 4], *arguments)

    case, _ = judge(scene_trial("one_request"), Late)
    assert "a, sample 0, place" in case.diagnosis
