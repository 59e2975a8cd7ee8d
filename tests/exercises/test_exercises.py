"""Stub: not yet. Solution: passes. Wrong answers: do not."""

import pytest

from pa_tutorial.exercises import EXERCISES, Exercise, attempt, grade
from pa_tutorial.exercises.exercise import PLACEHOLDER
from pa_tutorial.exercises.texts import code_lines


def marks(exercise: Exercise) -> list[pytest.MarkDecorator]:
    """Those in Triton are skipped where there is none, as the stage is."""
    return [pytest.mark.triton] if exercise.notebook == "24_triton" else []


each = pytest.mark.parametrize(
    "exercise", [pytest.param(one, id=one.name, marks=marks(one)) for one in EXERCISES.values()]
)


@each
def test_solution_passes(exercise: Exercise) -> None:
    assert grade(exercise.name, exercise.answer(exercise.source)).ok


@each
def test_stub_is_not_yet(exercise: Exercise) -> None:
    result = grade(exercise.name, exercise.answer(exercise.stub))
    assert result.passed == 0
    assert "not yet" in str(result)
    assert "not written yet" in result.first_failure.diagnosis
    assert str(result).count("\n") == 1  # the reason, once


@each
def test_wrong_answers_do_not_pass(exercise: Exercise) -> None:
    for wrong in exercise.wrong:
        result = grade(exercise.name, exercise.answer(wrong.made_in(exercise.source)))
        assert not result.ok, wrong.why
        assert result.first_failure.diagnosis in str(result)
        assert "not yet" in result._repr_html_()


def test_an_attempt_shows_the_verdict_and_gives_what_the_notebook_goes_on_with(capsys) -> None:
    exercise = EXERCISES["can_schedule"]
    mine, stub = exercise.answer(exercise.source), exercise.answer(exercise.stub)
    assert attempt("can_schedule", mine) is mine
    count = grade("can_schedule").passed  # of our own answer
    assert capsys.readouterr().out.startswith(f"can_schedule: {count} of {count} cases")
    assert attempt("can_schedule", stub) is exercise.solution
    assert "not written yet" in capsys.readouterr().out
    with pytest.raises(ValueError, match="name is 'kv_cache'"):
        attempt("kv_cache", mine)
    with pytest.raises(TypeError, match="function is 7"):
        attempt("can_schedule", 7)


# Exercise, what is changed in its solution, the first case that must fail, and what it must say.
CLOSE = (
    ("append_keys", "head_idx * head_stride", "head_idx * BLOCK_SIZE * HEAD_SIZE",
     "gaps", "heads head_stride"),
    ("append_keys", ".to(tl.int64)", "", "large_pool", "Block number times stride overflows"),
    ("running_tokens", "if index >= alive:", "if index >= alive or budget <= 1:",
     "budget", "to its last token"),
    ("sum_in_shared", "cuda.syncthreads()", "pass", "eight_threads", "who has written the element"),
    ("transpose_tokens", "range(warp, 32, num_warps):\n            tile",
     "range(32):\n            tile", "many_warps", "each warp takes its own"),
    ("part_of_layer", "w_k[own_kv], w_v[own_kv]", "w_k[own], w_v[own]",
     "gqa", "attend got k with 4 heads; on this rank, k has 2"),
    ("head_tile", "@triton.jit\n", "", "compiled", "compile it: @triton.jit is missing"),
    ("token_offsets", "    block_number", "    if is_token:\n        pass\n    block_number",
     "compiled", "compile line 23, `if is_token:`"),
    ("add_tile", ', input_precision="ieee"', "", "compiled", "10 bits of the fraction"),
    ("compare_rounds", "ratios = b / a", "ratios = b.div_(a)", "quiet", "must only read them"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "case", "says"),
    [pytest.param(*one, marks=marks(EXERCISES[one[0]])) for one in CLOSE],
)
def test_an_answer_that_is_right_in_most_cases_fails_the_one_that_is_about_it(
    name: str, old: str, new: str, case: str, says: str
) -> None:
    exercise = EXERCISES[name]
    assert exercise.source.count(old) == 1
    failure = grade(name, exercise.answer(exercise.source.replace(old, new))).first_failure
    assert failure.name == case
    assert says in failure.report()


def test_q_in_its_own_order_passes() -> None:
    """No padding and no rows: another cure than the solution's."""
    exercise = EXERCISES["query_to_shared"]
    source = exercise.source.replace("(NUM_VECS_PER_THREAD | 1) * VEC_SIZE", "VEC_SIZE")
    source = source.replace("j * VEC_SIZE + e", "j * THREAD_GROUP_SIZE * VEC_SIZE + e")
    own_place = "i // VEC_SIZE * THREAD_GROUP_SIZE * VEC_SIZE + i % VEC_SIZE"
    answer = exercise.answer(source.replace("start + i]", f"start + {own_place}]"))
    assert grade(exercise.name, answer).ok


@each
def test_a_stub_is_the_solution_without_the_marked_place_which_no_hint_gives_away(
    exercise: Exercise,
) -> None:
    before, after = exercise.stub.split(PLACEHOLDER)
    assert exercise.source.startswith(before)
    assert exercise.source.rstrip().endswith(after)
    hints = " ".join(exercise.table["hints"])
    assert not [line for line in code_lines(exercise.body) if line in hints]
