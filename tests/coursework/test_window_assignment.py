"""The assignment of a sliding window: its starter earns nothing, its solution all, in any draw."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pa_tutorial.checks.running import Trial, judge, run_trials
from pa_tutorial.checks.showing import CaseResult
from pa_tutorial.coursework.assignment import SLIDING_WINDOW, assignment
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.exercises.tasks import Task
from pa_tutorial.exercises.window import TASKS
from pa_tutorial.exercises.window.files import (
    PLAIN,
    SOLUTION,
    V1,
    solution_texts,
    solved_kernels,
    starter_texts,
)
from pa_tutorial.exercises.window.kernel_trials import NUM_THREADS, v1_launch, v2_launches
from pa_tutorial.exercises.window.window_problem import WindowProblem, attend_in_window
from pa_tutorial.kernels.compiled.report import CAPABILITIES, Capability, compiled
from pa_tutorial.kernels.cuda_backends import v1_backend, v2_backend
from pa_tutorial.kernels.cuda_launch import CudaLaunch
from tests.coursework.window_answers import WrongAnswer, load_wrong_answers

each = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
each_draw = pytest.mark.parametrize("draw", [0, 1, 2**31])
each_wrong = pytest.mark.parametrize(
    "wrong", load_wrong_answers(), ids=lambda wrong: f"{wrong.task}-{wrong.why}"
)
F16 = torch.float16
rest = pytest.mark.rest("its solution earns all, and its starter nothing")
HandIn = Callable[[Task, Path], object]


def outputs(v1: CudaLaunch, v2: CudaLaunch) -> list[torch.Tensor]:
    v1.simulate()
    v2.simulate()
    return [v1.out, v2.out]


def test_without_a_window_the_solution_computes_what_our_kernels_compute() -> None:
    """Its functions are copies of ours: if ours has changed, change these too."""
    problem = WindowProblem("", "", "", seq_lens=(37, 9), num_heads=2, partition_size=16)
    first, second = solved_kernels()
    found = outputs(v1_launch(problem, (first,)), v2_launches(problem, (first, second)))
    step = problem.paged("vllm")
    wanted = outputs(
        v1_backend.prepare(step, num_threads=NUM_THREADS),
        v2_backend.prepare(step, num_threads=NUM_THREADS, partition_size=16),
    )
    assert all(map(torch.equal, found, wanted))


@pytest.fixture
def hand_in(monkeypatch) -> HandIn:
    """Read an answer to a task from the files in a folder, as the grader does."""

    def answer(task: Task, folder: Path) -> object:
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "window", raising=False)
        return task.answer()

    return answer


def judged(task: Task, name: str, answer: object, draw: int = 0) -> CaseResult:
    (trial,) = (trial for trial in task.trials(draw) if trial.name == name)
    return judge(trial, answer)[0]


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.rest(keep=["blocks_in_window-0", "paged_attention-0", "v1-0"])
@each_draw
@each
def test_starter_earns_nothing_and_solution_all(
    task: Task, draw: int, hand_in: HandIn, tmp_path: Path
) -> None:
    trials = task.trials(draw)
    begun = hand_in(task, written(tmp_path, starter_texts()))
    assert run_trials(task.name, trials, begun).passed == 0
    result = run_trials(task.name, trials, hand_in(task, SOLUTION))
    assert result.ok, result


@rest
@each_draw
@each_wrong
def test_wrong_answer_fails_the_case_that_is_about_it(
    wrong: WrongAnswer, draw: int, hand_in: HandIn, tmp_path: Path
) -> None:
    task = assignment(SLIDING_WINDOW).task(wrong.task)
    case = judged(task, wrong.fails, hand_in(task, written(tmp_path, wrong.texts())), draw)
    assert not case.passed
    assert case.diagnosis


@rest
@each
def test_another_draw_has_the_same_cases_on_other_numbers(task: Task) -> None:
    old, new, again = (task.trials(draw) for draw in (0, 7, 7))
    assert [(t.name, t.meaning) for t in old] == [(t.name, t.meaning) for t in new]
    wanted = [[*map(expected, trials)] for trials in (old, new, again)]
    assert sum(map(np.array_equal, wanted[0], wanted[1])) <= len(old) / 4
    assert all(map(np.array_equal, wanted[1], wanted[2]))


def expected(trial: Trial) -> np.ndarray:
    (reference,) = trial.references.values()
    return np.asarray(reference()["out"], dtype=float)


@rest
def test_the_code_of_the_hand_out_runs(tmp_path: Path, capsys, monkeypatch) -> None:
    write_folder(assignment(SLIDING_WINDOW), tmp_path, solved=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    parts = (tmp_path / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    code = "\n".join(part.split("```")[0] for part in parts)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"start_block_idx [1-9]\n", printed)  # v1
    assert re.search(r"thread block \(0, 0, [1-9]\) {'start_block_idx': [1-9]", printed)  # v2
    assert (tmp_path / "look.html").stat().st_size > 0


@rest
@pytest.mark.parametrize(
    ("task", "file", "changed", "said"),
    [
        # a piece of the file, and what the student wrote instead
        ("blocks_in_window", PLAIN, ("return f", "return 1.0 * f"), "must be ints"),
        ("v1", V1, ("slope, thread_idx", "thread_idx"), "fill_logits takes"),
        ("v1", V1, ("WINDOW = 0", "WINDOW ="), "v1_window.py is damaged"),
    ],
)
def test_a_message_says_what_is_wrong_with_a_file(
    task: str, file: str, changed: tuple[str, str], said: str, hand_in, tmp_path
) -> None:
    texts = solution_texts()
    texts[file] = texts[file].replace(*changed)
    one = assignment(SLIDING_WINDOW).task(task)
    result = judged(one, "one_token", hand_in(one, written(tmp_path, texts)))
    assert not result.passed
    assert said in result.diagnosis


def test_the_page_for_monday_counts_the_cases() -> None:
    page = (Path(__file__).parents[2] / "notebooks/MONDAY.md").read_text(encoding="utf-8")
    borders, reference, *others = (len(task.trials(0)) for task in TASKS)
    in_all = borders + reference + sum(others)
    assert f"\n{borders} failed, {in_all - borders} deselected\n" in page
    assert f"says `{borders + reference} passed`" in page
    assert f"says `{in_all} passed`" in page


@rest
def test_the_oracle_sees_the_newest_tokens() -> None:
    """By hand: equal scores, so the output is the mean of what is seen."""
    keys, values = np.ones((4, 1, 2)), np.array([[9.0, 1], [9, 2], [1, 3], [3, 4]])[:, None]
    for window, mean in ((2, [2.0, 3.5]), (0, [5.5, 2.5])):
        out = attend_in_window(np.ones((1, 2)), keys, values, 1.0, np.zeros(1), window)
        np.testing.assert_allclose(out, [mean])


@rest
@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_the_solution_compiles_to_float32_in_registers(capability: Capability) -> None:
    def problem(**sizes: object) -> WindowProblem:
        return WindowProblem("", "", "", seq_lens=(20,), dtype=F16, window=1000, **sizes)

    first, second = solved_kernels()
    by_element, by_vec = (
        v1_launch(problem(head_size=128, block_size=16, vectors=vectors), (first,))
        for vectors in (False, True)
    )
    v2 = v2_launches(problem(head_size=64, partition_size=512), (first, second))
    for launch in (by_element, by_vec, v2.partitions, v2.reduce):
        build = compiled(launch.kernel, *launch.arguments.values(), capability=capability)
        assert ".f64" not in build.ptx
        assert build.spill_bytes == build.stack_bytes == 0
