"""A grade is made of what an answer returns or leaves; our words about it decide nothing.

A student's process runs the cases, and its code can patch what words an AnswerError has, or that
one is raised. So here no case raises one: wrong answers must lose all the same, by their numbers.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pa_tutorial.checks.running import judge
from pa_tutorial.exercises.blank import Blank, all_blanks
from tests.exercises.blank_cells import function_of

PACKAGE = "pa_tutorial.exercises"
# Their numbers are right; what is wrong is how they came about, which no number shows.
RIGHT_NUMBERS = {
    "append_kv-4": "it copies the whole cache",
    "gather-5": "it copies the whole pool",
    "gather-7": "it copies padding",
    "add_token-7": "an exponential without exp_from",
    "add_token-8": "an exponential without exp_from",
    "merge-5": "it changes one of the parts",
}


@pytest.mark.parametrize(
    "blank", [pytest.param(b, id=b.name) for b in all_blanks().values() if b.file == "pages"]
)
def test_wrong_answers_lose_by_their_numbers(blank: Blank, monkeypatch) -> None:
    for name in ("pools_at_work", blank.notebook):
        module = importlib.import_module(f"{PACKAGE}.{name}")
        text = Path(module.__file__).read_text(encoding="utf-8")
        silenced = ModuleType(module.__name__)
        silenced.__file__ = module.__file__
        monkeypatch.setitem(sys.modules, module.__name__, silenced)
        text = text.replace("raise AnswerError(", "AnswerError(").replace(") from None", ")")
        exec(compile(text, module.__file__, "exec"), vars(silenced))
    passed = set()
    for number, wrong in enumerate(blank.wrong):
        answer = function_of(blank, wrong.made_in(blank.source))
        if all(judge(trial, answer)[0].passed for trial in blank.trials()):
            passed.add(f"{blank.name}-{number}")
    assert passed == {one for one in RIGHT_NUMBERS if one.startswith(f"{blank.name}-")}
