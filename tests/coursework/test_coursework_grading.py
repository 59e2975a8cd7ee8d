"""Each submission gets the points that it is worth, whatever its code does."""

import pytest
from coursework_students import (
    DRAW,
    EMPTY,
    LIMITS,
    NAME,
    RIGHT,
    SECOND,
    STUDENTS,
    files,
    is_worth,
)

from pa_tutorial.coursework import grading
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.grading import Grade, grade, grade_task
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.coursework.plain import files_of_folder
from pa_tutorial.exercises import EXERCISES


def graded(answers: dict[str, str], limits: Limits = LIMITS, **more_files: str) -> Grade:
    texts = {**files(answers), **{f"{name}.py": text for name, text in more_files.items()}}
    return grade("student", texts, assignment(NAME), DRAW, limits)


@pytest.mark.parametrize("student", STUDENTS)
def test_students_get_what_they_are_worth(student: str) -> None:
    answers, wanted = STUDENTS[student]
    result = graded(answers)
    for task in result.tasks:
        assert is_worth(task.points, wanted[task.task]), result
        assert task.points == task.out_of or task.reasons, "it must say why"
    assert result.points == sum(task.points for task in result.tasks)
    if student == "never_ending":
        stopped = f"stopped after {LIMITS.seconds:g} s: it does not end, or is much too slow"
        assert result.tasks[1].note == stopped


def test_points_are_the_part_of_the_cases_that_pass() -> None:
    names = [trial.name for trial in EXERCISES[SECOND].trials(DRAW)]
    said = [{"case": name, "passed": True} for name in names[:4]]
    said += [{"case": names[4], "passed": False, "diagnosis": "it is not right"}]
    result = grade_task(assignment(NAME).tasks[1], DRAW, [*said, {"problem": "it ended"}])
    assert result.points == round(10 * 4 / len(names), 2)
    reasons = [
        "it ended",
        f"{names[4]}: it is not right",
        f"not run: {len(names) - 5} of its cases",
    ]
    assert result.reasons == reasons


# Code that does more than its task asks: three answers a submission.
EXCESS = {
    "memory": (
        "def running_max_and_sum(scores):\n    return [0.0] * 10**9",
        "def merge_parts(parts):\n    return torch.ones(10**10)",
        "def merge_outputs(outs, lses):\n    return merge_outputs(outs, lses)",
    ),
    "ends": (
        "def running_max_and_sum(scores):\n    raise SystemExit(0)",
        "def merge_parts(parts):\n    print('10 of 10 points ' * 10**5)",
        "",
    ),
}


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(EXCESS["memory"], marks=pytest.mark.needs("limits of memory"), id="memory"),
        pytest.param(EXCESS["ends"], id="ends"),
    ],
)
def test_what_an_answer_does_costs_its_own_points_only(answers: tuple[str, str, str]) -> None:
    result = graded(dict(zip(RIGHT, answers, strict=True)))
    assert [len(task.reasons) for task in result.tasks] == [1, 1, 1 + (not answers[2])], result
    assert result.points == 0


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        pytest.param("os.kill(0, 9)", marks=pytest.mark.needs("POSIX")),
        "sys.exit()",
    ],
)
def test_a_process_that_ends_costs_the_task_in_which_it_did(end: str, monkeypatch) -> None:
    """Nothing that the guard lets through does this; without it, the other tasks still count."""
    monkeypatch.setattr(grading, "objection_to", lambda files: "")
    crash = f"def merge_parts(parts):\n    import os, sys\n    {end}\n"
    result = graded({**RIGHT, SECOND: crash})
    assert [task.points for task in result.tasks] == [10, 0, 10], result
    assert result.tasks[1].reasons


FORBIDDEN = {
    "the solution": "from pa_tutorial.exercises import EXERCISES",
    "the checks": "import pa_tutorial.checks.running",
    "the checks, by another way": "from pa_tutorial import checks",
    "this process": "import sys",
    "the system, through another module": "import torch\n\ntorch.os.listdir()",
    "files": "open('/etc/passwd')",
    "text as code": "exec('import os')",
    "an inside": "().__class__.__base__.__subclasses__()",
    "attributes by text": "import torch\n\ngetattr(torch, 'o' + 's')",
    "a syntax error": "def f(:",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_an_answer_may_not_reach_is_refused_with_the_line(what: str) -> None:
    result = graded({**RIGHT, SECOND: RIGHT[SECOND] + "\n\n" + FORBIDDEN[what] + "\n"})
    assert result.points == 0
    assert all(task.note.startswith("answers.py: line ") for task in result.tasks), result


def test_files_beside_the_answers_may_be_imported_but_not_hide_a_library() -> None:
    helped = {**RIGHT, SECOND: "from helping import merge_parts\n"}
    text = "import math\nfrom collections.abc import Sequence\n\n\n" + RIGHT[SECOND]
    torch_of_a_student = "raise RuntimeError('this is not torch')\n"
    result = graded(helped, helping=text, torch=torch_of_a_student)
    assert result.points == 30, result


def test_tests_and_their_settings_of_a_student_are_not_read(tmp_path) -> None:
    for name in ("test_tasks.py", "conftest.py", "answers.py", "adapters.py"):
        (tmp_path / name).write_text("def v1(): ...\n", encoding="utf-8")
    one, found = files_of_folder(tmp_path)
    assert one.name == "sliding_window"
    assert sorted(found) == ["adapters.py", "answers.py"]


def test_a_folder_without_adapters_is_no_submission(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"has no adapters\.py"):
        files_of_folder(tmp_path)


def test_only_cases_that_there_are_count() -> None:
    """Whoever writes to the report cannot add cases, or count one twice."""
    task = assignment(NAME).tasks[0]
    names = [trial.name for trial in task.trials(DRAW)]
    forged = [{"case": "made_up", "passed": True}, {"case": names[0], "passed": 1}]
    result = grade_task(task, DRAW, forged)
    assert result.points == 0
    assert list(result.failed) == names


def test_an_empty_answer_says_so() -> None:
    assert "not written yet" in graded(EMPTY).tasks[0].reasons[0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"seconds": 0}, "seconds is 0"), ({"megabytes": 0}, "megabytes is 0")],
)
def test_a_limit_of_nothing_is_refused(limits: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)
