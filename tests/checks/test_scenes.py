"""The scenes of the engine: ours plays them right, and a wrong one is caught."""

import pytest

from pa_tutorial.checks.engine_alone import AT_THE_END
from pa_tutorial.checks.engine_check import SCENES, scene_trial
from pa_tutorial.checks.running import judge
from pa_tutorial.engine.engine import Engine


@pytest.mark.engine
@pytest.mark.parametrize("name", SCENES)
def test_engine_plays_the_scene_as_each_request_alone(name: str) -> None:
    case, comparisons = judge(scene_trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0


class KeepsABlock(Engine):
    def add(self, *arguments: object) -> object:
        self.pages.append("never freed", [0])
        return super().add(*arguments)


class TakesBack(Engine):
    """The token generated last becomes another one before the next step."""

    def step(self) -> object:
        for sequence in self.scheduler.running:
            sequence.token_ids[-1] ^= 1
        return super().step()


class Fails(Engine):
    """In every step, so that no request ever ends: the scene must."""

    def step(self) -> object:
        self.statistics.append(self._count(ValueError("trouble on demand")))
        return self.statistics[-1]


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [*zip((Fails, KeepsABlock, TakesBack, Fails), AT_THE_END, strict=True)],
    ids=AT_THE_END,
)
def test_what_is_always_zero_at_the_end_of_a_scene_is_seen(wrong: type, seen: str) -> None:
    """And the failure names the first row that is wrong."""
    trial = scene_trial("one_request")
    rows = trial.axes[0].split("|")
    case, (comparison,) = judge(trial, wrong)
    assert comparison.expected[rows.index(seen)][0] == 0
    assert comparison.actual[rows.index(seen)][0] > 0
    assert any(f"{row}, place 0 is " in case.diagnosis for row in rows)
