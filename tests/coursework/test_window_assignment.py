"""The assignment of a sliding window: its starter earns nothing, its solution all, in any draw."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pa_tutorial.checks.running import judge, run_trials
from pa_tutorial.checks.showing import CaseResult, Result
from pa_tutorial.coursework.assignment import SLIDING_WINDOW, assignment
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.coursework.tasks import Task
from pa_tutorial.coursework.window import files
from pa_tutorial.coursework.window.window_problem import attend_in_window
from pa_tutorial.kernels.compiled.report import CAPABILITIES, Capability, compiled
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.text_changes import Version
from tests.exercises.test_exercise_draws import expected
from tests.kernels.test_paged_kernel_compiles import complaints, reduce_arguments, v1_arguments
from tests.kernels.test_paged_kernel_compiles import pytestmark as needs_compiler

F16 = torch.float16
each = pytest.mark.parametrize("name", files.PLACES)
each_draw = pytest.mark.parametrize("draw", [0, 1, 2**31])
rest = pytest.mark.rest("its solution earns all, and its starter nothing")


# The assignment is made of changes to our kernels, and after a change of these it may not be made
# any more: then its tests fail, and all others are still collected.
@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.name: task for task in assignment(SLIDING_WINDOW).tasks}


@pytest.fixture(scope="module")
def starter() -> dict:
    return files.load(files.starter_files())


def result_of(task: Task, answers: dict, draw: int = 0) -> Result:
    return run_trials(task.name, task.trials(draw), answers[task.name])


def case_of(task: Task, name: str, answers: dict, draw: int = 0) -> CaseResult:
    (trial,) = (trial for trial in task.trials(draw) if trial.name == name)
    return judge(trial, answers[task.name])[0]


def test_each_task_is_an_answer_of_its_files(tasks: dict[str, Task]) -> None:
    assert tasks.keys() == files.PLACES.keys()


@pytest.mark.rest(keep=["blocks_in_window-0", "v1-0"])
@each_draw
@each
def test_starter_earns_nothing_and_solution_all(
    name: str, draw: int, tasks: dict[str, Task], starter: dict
) -> None:
    assert result_of(tasks[name], starter, draw).passed == 0
    result = result_of(tasks[name], files.solution(), draw)
    assert result.ok, result


def answers_of(one: Version) -> dict:
    return files.load(files.solution_files(one.changes))


@rest
@each_draw
@pytest.mark.parametrize("one", files.WRONG, ids=lambda one: f"{one.name}-{one.why}")
def test_wrong_answer_fails_the_case_that_is_about_it(
    one: Version, draw: int, tasks: dict[str, Task]
) -> None:
    case = case_of(tasks[one.name], one.more["fails"], answers_of(one), draw)
    assert not case.passed
    assert case.diagnosis


@rest
@each
def test_another_draw_has_the_same_cases_on_other_numbers(
    name: str, tasks: dict[str, Task]
) -> None:
    old, new, again = (tasks[name].trials(draw) for draw in (0, 7, 7))
    assert [(t.name, t.meaning) for t in old] == [(t.name, t.meaning) for t in new]
    wanted = [[expected(trial) for trial in trials] for trials in (old, new, again)]
    assert sum(map(np.array_equal, wanted[0], wanted[1])) <= len(old) / 4
    assert all(map(np.array_equal, wanted[1], wanted[2]))


@rest
def test_the_oracle_sees_the_newest_tokens() -> None:
    """By hand: equal scores, so the output is the mean of what is seen."""
    keys, values = np.ones((4, 1, 2)), np.array([[9.0, 1], [9, 2], [1, 3], [3, 4]])[:, None]
    for window, mean in ((2, [2.0, 3.5]), (0, [5.5, 2.5])):
        out = attend_in_window(np.ones((1, 2)), keys, values, 1.0, np.zeros(1), window)
        np.testing.assert_allclose(out, [mean])


@rest
def test_the_code_of_the_hand_out_runs(tmp_path: Path, capsys, monkeypatch) -> None:
    write_folder(assignment(SLIDING_WINDOW), tmp_path, solved=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("window", "paged_attention_window", "reduce_window"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    parts = (tmp_path / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    code = "\n".join(part.split("```")[0] for part in parts)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("load_k") == 2  # what is traced is not a thread block that returns at once
    assert re.search(r"start_block_idx [1-9]\n", printed)  # v1
    assert re.search(r"thread block \(0, 0, [1-9]\) {'start_block_idx': [1-9]", printed)  # v2
    assert (tmp_path / "look.html").stat().st_size > 0


@rest
@pytest.mark.parametrize(
    ("name", "case", "answer", "said"),
    [
        # the answer, or words of the wrong answer
        ("v1", "one_token", lambda *_: None, "None: not written yet"),
        ("blocks_in_window", "one_token", lambda *_: (1.0, 2, 3), "they must be ints"),
        ("blocks_in_window", "short_sequence", "larger", r"\(\d+, \d+, \d+\), first_token_idx"),
        ("v1", "skips_k", "nothing is skipped", "bytes of k_cache were read; the blocks of"),
    ],
)
def test_a_message_says_where_it_is_wrong(
    name: str, case: str, answer: object, said: str, tasks: dict[str, Task]
) -> None:
    answers = {name: answer}
    if isinstance(answer, str):
        (one,) = (one for one in files.WRONG if one.name == name and answer in one.why)
        answers = answers_of(one)
    result = case_of(tasks[name], case, answers)
    assert not result.passed
    assert re.search(said, result.diagnosis), result.diagnosis


@rest
@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_the_solution_compiles(capability: Capability) -> None:
    v1, v2 = Geometry(128, 16, F16), Geometry(64, 8, F16, partition_size=512)
    kernel, reduce = files.solution()["v2"]
    for geometry, loads in ((v1, vector_loads), (v1, element_loads), (v2, vector_loads)):
        built = compiled(kernel(geometry, loads, 1000), *v1_arguments(F16), capability=capability)
        assert not complaints(built)
    assert not complaints(compiled(reduce(v2, 1000), *reduce_arguments(F16), capability=capability))
