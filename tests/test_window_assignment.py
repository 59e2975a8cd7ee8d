"""The assignment of a sliding window: its starter earns nothing, its solution all, in any draw."""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from test_paged_kernel_compiles import complaints
from test_paged_kernel_compiles import pytestmark as needs_compiler

from pa_tutorial.checks.running import Trial, judge, run_trials
from pa_tutorial.checks.showing import CaseResult, Result
from pa_tutorial.coursework.table import PATH as TABLE
from pa_tutorial.coursework.table import row_of_task
from pa_tutorial.coursework.window import TASKS, Task, files, load, write_student_files
from pa_tutorial.coursework.window.cases import V1_CASES, problems
from pa_tutorial.coursework.window.problem import attend_in_window
from pa_tutorial.kernels.compiled import (
    CAPABILITIES,
    Capability,
    compiled,
    reduce_signature,
    v1_signature,
)
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.paging.block_table import Appended, BlockTable
from pa_tutorial.text_changes import Version

MORE_DRAWS = (1, 2, 2**63)
each = pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
each_wrong = pytest.mark.parametrize(
    ("task", "one"),
    [
        pytest.param(task, one, id=f"{task.name}-{one.why}")
        for task in TASKS.values()
        for one in task.wrong
    ],
)
F16 = torch.float16


@cache
def starter() -> dict:
    return files.load_texts(files.starter_files())


def answers_of(one: Version) -> dict:
    return files.load_texts(files.solution_files(one.changes))


def result_of(task: Task, answers: dict, draw: int = 0) -> Result:
    return run_trials(task.name, task.trials(draw), answers[task.name])


def case_of(task: Task, name: str, answers: dict, draw: int = 0) -> CaseResult:
    (trial,) = (trial for trial in task.trials(draw) if trial.name == name)
    return judge(trial, answers[task.name])[0]


@each
def test_starter_earns_nothing(task: Task) -> None:
    result = result_of(task, starter())
    assert result.passed == 0, result


@each
def test_solution_earns_all(task: Task) -> None:
    result = result_of(task, files.solution())
    assert result.ok, result


@each
@pytest.mark.parametrize("draw", MORE_DRAWS)
def test_other_draws(task: Task, draw: int) -> None:
    result = result_of(task, files.solution(), draw)
    assert result.ok, result
    assert result_of(task, starter(), draw).passed == 0


@each_wrong
def test_wrong_answer_fails_the_case_that_is_about_it(task: Task, one: Version) -> None:
    answers = answers_of(one)
    case = case_of(task, one.more["fails"], answers)
    assert not case.passed
    assert case.diagnosis


@each_wrong
@pytest.mark.parametrize("draw", MORE_DRAWS)
def test_wrong_answer_in_other_draws(task: Task, one: Version, draw: int) -> None:
    answers = answers_of(one)
    assert not case_of(task, one.more["fails"], answers, draw).passed


@each
def test_most_wrong_answers_earn_points_for_the_rest(task: Task) -> None:
    rows = [row_of_task(task, one) for one in task.wrong]  # it refuses one that passes
    assert all(row in TABLE.read_text(encoding="utf-8") for row in rows)
    assert sum("| 0 of" not in row for row in rows) > len(rows) / 2, rows


@each_wrong
def test_the_table_has_a_row_for_each_wrong_answer(task: Task, one: Version) -> None:
    assert f"| window | `{task.name}` | {one.why} | " in TABLE.read_text(encoding="utf-8")


@each
def test_every_task_has_wrong_answers_points_and_a_text(task: Task) -> None:
    assert len(task.wrong) >= 4
    assert task.points > 0
    assert task.text in files.starter_files()[files.HAND_OUT]
    assert {one.more["fails"] for one in task.wrong} <= {trial.name for trial in task.trials(0)}


def test_all_tasks_together_have_20_points() -> None:
    assert sum(task.points for task in TASKS.values()) == 20


def test_a_kernel_that_masks_and_does_not_skip_loses_only_what_counts_bytes() -> None:
    texts = files.solution_files(files.VERSIONS["masks_only"])
    result = result_of(TASKS["v1"], files.load_texts(texts))
    failed = {case.name: case for case in result.cases if not case.passed}
    assert set(failed) == {"skips_k", "skips_v"}, result
    assert "the output is right, but" in failed["skips_k"].diagnosis


# Draws -----------------------------------------------------------------------------------------


def expected(trial: Trial) -> np.ndarray:
    (reference,) = trial.references.values()
    return np.asarray(reference()["out"], dtype=float)


@each
def test_another_draw_has_the_same_cases_on_other_numbers(task: Task) -> None:
    old, new = task.trials(0), task.trials(7)
    told = [[(t.name, t.isolates, t.meaning) for t in trials] for trials in (old, new)]
    assert told[0] == told[1]
    same = [a.name for a, b in zip(old, new, strict=True)
            if np.array_equal(expected(a), expected(b))]  # fmt: skip
    assert len(same) <= len(old) / 4, same


@each
def test_the_same_draw_is_the_same(task: Task) -> None:
    for one, other in zip(task.trials(7), task.trials(7), strict=True):
        np.testing.assert_array_equal(expected(one), expected(other))


def test_what_lies_before_the_window_is_nan_and_block_0() -> None:
    (problem,) = (p for p in problems(V1_CASES, 0) if p.name == "blocks_a_warp")
    inputs = problem.paged("vllm")
    held = problem.without().block_tables()[0]
    for row, first, own in zip(inputs.block_tables, problem.first_tokens(), held, strict=True):
        gone = first // problem.block_size
        assert gone > 0
        assert not row[:gone].any()
        assert inputs.k_cache[0].isnan().all()
        assert inputs.v_cache[own[:gone]].isnan().all()
        assert row[gone : len(own)].tolist() == own[gone:]


def test_the_oracle_masks_by_position() -> None:
    """By hand: equal scores, so the output is the mean of what is seen."""
    keys, values = np.ones((4, 1, 2)), np.array([[9.0, 1], [9, 2], [1, 3], [3, 4]])[:, None]
    out = attend_in_window(np.ones((1, 2)), keys, values, 1.0, np.zeros(1), 2)
    np.testing.assert_allclose(out, [[2.0, 3.5]])
    out = attend_in_window(np.ones((1, 2)), keys, values, 1.0, np.zeros(1), 0)
    np.testing.assert_allclose(out, [[5.5, 2.5]])


# Files -----------------------------------------------------------------------------------------


def test_a_student_gets_the_files_and_loses_none(tmp_path: Path) -> None:
    paths = write_student_files(tmp_path / "mine")
    assert [path.name for path in paths] == list(files.starter_files())
    assert all(
        path.read_text(encoding="utf-8") == files.starter_files()[path.name] for path in paths
    )
    paths[0].write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is there already"):
        write_student_files(tmp_path / "mine")
    assert paths[0].read_text(encoding="utf-8") == "mine"


def test_a_folder_is_loaded_as_it_is_now_and_leaves_nothing(tmp_path: Path) -> None:
    task = TASKS["blocks_in_window"]
    path = {path.name: path for path in write_student_files(tmp_path)}[files.PLAIN]
    modules = set(sys.modules)
    assert result_of(task, load(tmp_path)).passed == 0
    path.write_text(files.solution_files()[files.PLAIN], encoding="utf-8")
    assert result_of(task, load(tmp_path)).ok
    assert not {name for name in set(sys.modules) - modules if "window_answer" in name}
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_code_of_the_hand_out_runs(tmp_path: Path, capsys, monkeypatch) -> None:
    for name, text in files.solution_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    parts = (tmp_path / files.HAND_OUT).read_text(encoding="utf-8").split("```python\n")[1:]
    code = "\n".join(part.split("```")[0] for part in parts)
    exec(compile(code, "TASKS.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("Global memory: paged_attention_kernel") == 2
    assert printed.count("load_k") == 2  # what is traced is not a thread block that returns at once
    assert "start_block_idx 3\n" in printed  # v1: 27 // 8
    assert "thread block (0, 0, 2) {'start_block_idx': 5" in printed  # v2: 46 // 8
    assert "thread block (0, 0, 1)" not in printed
    assert (tmp_path / "look.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def blocks_in_window(:", "window.py cannot be loaded: it raised SyntaxError"),
        ("raise SystemExit(0)", "window.py cannot be loaded: it raised SystemExit"),
        ("", "window.py has no function blocks_in_window"),
        (None, "window.py cannot be loaded: it raised FileNotFoundError"),
    ],
)
def test_a_file_that_does_not_load_costs_only_its_tasks(
    tmp_path: Path, text: str | None, said: str
) -> None:
    for name, solved in files.solution_files().items():
        (tmp_path / name).write_text(solved, encoding="utf-8")
    path = tmp_path / files.PLAIN
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    answers = load(tmp_path)
    result = result_of(TASKS["blocks_in_window"], answers)
    assert result.passed == 0
    assert said in result.first_failure.diagnosis
    assert case_of(TASKS["v2"], "one_partition_left", answers).passed


@pytest.mark.parametrize("made", [lambda *_: None, lambda *_: 3], ids=["None", "a number"])
@pytest.mark.parametrize("task", ["v1", "v2"])
def test_a_factory_that_makes_no_kernel_is_told_so(task: str, made: object) -> None:
    answers = {"v1": made, "v2": (made, made)}
    diagnosis = case_of(TASKS[task], "one_token", answers).diagnosis
    assert "None: not written yet" in diagnosis or "it must return a kernel" in diagnosis


@pytest.mark.parametrize(
    ("task", "case", "answer", "said"),
    [
        ("blocks_in_window", "one_token", (1, 2), "must return 3 whole numbers"),
        ("blocks_in_window", "one_token", 3, "must return 3 whole numbers"),
        ("blocks_in_window", "one_token", (1.0, 2, 3), "must return 3 whole numbers"),
        ("append_in_window", "chunk", [], "must return what append returns"),
        ("append_in_window", "chunk", Appended([], []), "not in the table"),
        ("shared_bytes", "one_more", 1.5, "must return a whole number"),
    ],
)
def test_an_answer_of_another_kind_is_told_so(
    task: str, case: str, answer: object, said: str
) -> None:
    def function(*arguments: object) -> object:
        return answer

    answers = {task: (function, None) if task == "shared_bytes" else function}
    assert said in case_of(TASKS[task], case, answers).diagnosis


def test_an_answer_that_lets_go_of_nothing_earns_nothing() -> None:
    def keep_all(table: BlockTable, token_ids: list[int], window: int) -> Appended:
        return table.append(token_ids)

    result = result_of(TASKS["append_in_window"], {"append_in_window": keep_all})
    assert result.passed == 0, result


@pytest.mark.parametrize(
    ("task", "case", "why", "said"),
    [
        ("blocks_in_window", "no_window", "window of no token", r"blocks_in_window\(\d+, 0, \d+\), "
         r"first_token_idx is"),
        ("shared_bytes", "no_window", "window of no token", r"shared_bytes\(geometry of blocks of "
         r"\d+, \d+, 0\), what it returns is"),
        ("append_in_window", "smallest_pool", "forgets that the new token", r"sequence a has \d+ "
         r"tokens and 1 new \(window \d+, blocks of \d\): it raised OutOfBlocks"),
        ("append_in_window", "any_window", "forgets that the new token", r"sequence a has \d+ "
         r"tokens and 1 new .*, the number of null blocks in it is"),
        ("v1", "with_and_without", "WINDOW = 0", "with window = 0, sequence 0"),
        ("v1", "with_and_without", "score 0 of a masked slot", r"with window = \d+, sequence 0"),
        ("v2", "reduce_copies", "drops what is NaN", "the reduce kernel read max_logits"),
    ],
)  # fmt: skip
def test_a_message_says_where_it_is_wrong(task: str, case: str, why: str, said: str) -> None:
    (one,) = (one for one in TASKS[task].wrong if why in one.why)
    diagnosis = case_of(TASKS[task], case, answers_of(one)).diagnosis
    assert re.search(said, diagnosis), diagnosis


def test_heads_that_are_wrong_are_not_laid_to_kv_heads() -> None:
    """The large slope of head 0 hides there that the window is too long."""
    (one,) = (one for one in TASKS["v1"].wrong if "one token too many" in one.why)
    answers = answers_of(one)
    for draw in range(4):
        case = case_of(TASKS["v1"], "heads_and_slopes", answers, draw)
        assert not case.passed
        assert "KV head" not in case.diagnosis


def test_slide_takes_what_it_is_worth() -> None:
    """It is right but for a window of one token, which TASKS.md warns of."""

    def slides(table: BlockTable, token_ids: list[int], window: int) -> Appended:
        table.slide(window - 1)
        return table.append(token_ids)

    result = result_of(TASKS["append_in_window"], {"append_in_window": slides})
    assert [case.name for case in result.cases if not case.passed] == ["window_of_one"]


@pytest.mark.parametrize("why", ["longest sequence", "logits of all tokens"])
def test_what_is_half_right_earns_about_half_of_shared_bytes(why: str) -> None:
    about_it = (one for one in TASKS["shared_bytes"].wrong if why in one.why)
    one = next(one for one in about_it if one.more["fails"] == "long_context")
    result = result_of(TASKS["shared_bytes"], answers_of(one))
    assert result.passed <= 6 < 11 == result.total


def test_the_starter_differs_from_the_live_kernels_by_the_window_only() -> None:
    """All changes apply, and each of them is about the window or the hand-out."""
    texts = files.starter_files()
    for name, live in ((files.KERNEL, "paged_attention.py"), (files.REDUCE, "reduce.py")):
        old = (files.PACKAGE / "kernels" / live).read_text(encoding="utf-8").splitlines()
        new = texts[name].splitlines()
        added = [line for line in new if line not in old]
        assert 4 <= len(added) <= 8
        assert "    WINDOW = window  # your task: use it" in added


# On a GPU --------------------------------------------------------------------------------------


V1, V2 = Geometry(128, 16, F16), Geometry(64, 8, F16, partition_size=512)


@needs_compiler
@pytest.mark.parametrize(
    ("geometry", "loads", "capability"),
    [
        pytest.param(V1, vector_loads, (8, 0), id="v1-sm_80"),
        pytest.param(V1, vector_loads, (9, 0), id="v1-sm_90"),
        pytest.param(V2, vector_loads, (9, 0), id="v2-sm_90"),
        pytest.param(V2, vector_loads, (8, 0), id="v2-sm_80"),
        pytest.param(V1, element_loads, (9, 0), id="elements-sm_90"),
    ],
)
def test_the_solution_compiles(geometry: Geometry, loads: Callable, capability: Capability) -> None:
    kernel = files.solution()["v1"](geometry, loads, 1000)
    assert not complaints(compiled(kernel, v1_signature(geometry), capability), geometry, None)


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_the_solution_of_reduce_compiles(capability: Capability) -> None:
    _, reduce = files.solution()["v2"]
    build = compiled(reduce(V2, 1000), reduce_signature(V2), capability)
    assert not complaints(build, V2, None)
