"""The scenes of the engine: ours plays them right, and a wrong one is caught."""

import pytest
import torch

from pa_tutorial.checks.engine_alone import AT_THE_END, Alone, trained
from pa_tutorial.checks.engine_check import MOST_STEPS, SCENES, WIDTH, Served, scene_trial
from pa_tutorial.checks.running import judge
from pa_tutorial.engine.engine import Engine

CLEAR = 1e-3  # far above the rounding of float32, so that no other machine chooses otherwise


@pytest.mark.engine
@pytest.mark.parametrize("name", SCENES)
def test_engine_plays_the_scene_as_each_request_alone(name: str) -> None:
    case, comparisons = judge(scene_trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0
    assert case.meaning.endswith(".")


@pytest.mark.rest("each scene is played")
@pytest.mark.parametrize("name", SCENES)
def test_each_greedy_choice_of_a_scene_is_clear_and_no_row_is_cut(name: str) -> None:
    alone = Alone()
    SCENES[name].play(alone)
    rows = alone.rows()
    assert max(map(len, rows.values())) <= WIDTH
    for request, (prompt, params) in alone.asked.items():
        tokens = prompt + [int(token) for token in rows[f"{request}, sample 0"]]
        if not params.temperature and tokens != prompt:
            scores = trained()(torch.tensor(tokens[:-1]))[len(prompt) - 1 :]
            best = scores.topk(2).values
            assert (best[:, 0] - best[:, 1]).min() > CLEAR


class Endless(Engine):
    def step(self) -> object:
        self.statistics.append(self._count(None))
        return self.statistics[-1]


class KeepsABlock(Engine):
    def add(self, *arguments: object) -> object:
        self.pages.append("never freed", [0])
        return super().add(*arguments)


class TakesBack(Engine):
    """The token generated last becomes another one before the next step."""

    def add(self, *arguments: object) -> object:
        self.newest = super().add(*arguments)
        return self.newest

    def step(self) -> object:
        for sample in self.newest.samples:
            if sample.generated:
                sample.token_ids[-1] ^= 1
        return super().step()


class Fails(Engine):
    def step(self) -> object:
        self.statistics.append(self._count(ValueError("trouble on demand")))
        return super().step()


def test_an_endless_engine_is_stopped() -> None:
    served = Served(Endless)
    SCENES["one_request"].play(served)
    assert served.num_steps == MOST_STEPS


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [*zip((Endless, KeepsABlock, TakesBack, Fails), AT_THE_END, strict=True)],
    ids=AT_THE_END,
)
def test_what_is_always_zero_at_the_end_of_a_scene_is_seen(wrong: type, seen: str) -> None:
    trial = scene_trial("one_request")
    row = trial.axes[0].split("|").index(seen)
    (comparison,) = judge(trial, wrong)[1]
    assert comparison.expected[row][0] == 0
    assert comparison.actual[row][0] > 0


def test_a_failure_names_the_row() -> None:
    class Late(Engine):
        def add(self, prompt: list[int], *arguments: object) -> object:
            return super().add([*prompt[:-1], prompt[-1] ^ 4], *arguments)

    case, _ = judge(scene_trial("one_request"), Late)
    assert "a, sample 0, place" in case.diagnosis
