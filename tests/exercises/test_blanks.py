"""Blanks: the answer passes, wrong answers and unfinished ones get a verdict, stubs tell little."""

import ast
import inspect
import re

import nbformat
import pytest

from pa_tutorial.exercises import EXERCISES, answers, attempt, exercises_of
from pa_tutorial.exercises import pages as our_pages
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.cells import fill
from pa_tutorial.exercises.kernel_text import excerpt, functions_in
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.texts import YOUR_CODE, Told, WrongAnswer, code_lines
from pa_tutorial.kernels.sources import FOLDER, text_of
from tests.exercises.blank_cells import changed, function_of
from tests.run_notebooks import NOTEBOOKS

BLANKS = list(all_blanks().values())
TOLD: list[Told] = [*BLANKS, *EXERCISES.values()]
each = pytest.mark.parametrize("blank", BLANKS, ids=lambda blank: blank.name)
# What people write first; the rest after `make test`.
WRONG = [
    pytest.param(b, wrong, id=f"{b.name}-{wrong.new}", marks=[pytest.mark.rest][: number > 0])
    for b in BLANKS
    for number, wrong in enumerate(b.wrong)
]
OF_KERNELS = ("07", "08", "09", "10", "11", "12", "13", "14", "21", "22")


# An index, an offset, a distance or a mask as a formula.
GIVEN_AWAY = re.compile(r"\[[^\]]*\]|//|%|\*|\b\d|<|>")


def plan(blank: Blank) -> list[str]:
    """Its comments, without the one beside the signature."""
    lines = [line.strip() for line in blank.stub.splitlines()]
    return [line for line in lines if line.startswith("#") and "# mark" not in line]


@pytest.mark.rest("test_notebooks.py: the notebooks filled in")
@each
def test_the_answer_passes_and_the_reader_goes_on_with_theirs(
    blank: Blank, capsys: pytest.CaptureFixture
) -> None:
    mine = changed(blank.name)
    assert attempt(blank.name, mine) is mine
    assert "goes on with yours" in capsys.readouterr().out


def test_our_function_of_another_file_does_not_take_the_place_of_ours() -> None:
    """After a cell with a syntax error, load_key is still that of v1."""
    by_vec = attempt("load_key_by_vec", BACKENDS["v1"].namespace().load_key)
    assert by_vec.py_func.__code__.co_filename == str(FOLDER / "v1_vector.py")


@pytest.mark.parametrize(("blank", "wrong"), WRONG)
def test_what_people_write_is_named(blank: Blank, wrong: WrongAnswer) -> None:
    assert wrong.says in verdict(blank, function_of(blank, wrong.made_in(blank.source)))


@each
def test_a_stub_is_the_answer_without_what_the_reader_writes(blank: Blank) -> None:
    given = [line for line in code_lines(blank.stub) if YOUR_CODE not in line]
    rest = iter(code_lines(blank.source))
    assert all(line in rest for line in given)  # in this order
    assert YOUR_CODE in blank.stub
    assert len(blank.wrong) >= 2


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_a_reader_is_told_the_level_and_gets_hints(told: Told) -> None:
    """An idea, how, a skeleton; an exercise in plain Python may do without the last."""
    assert told.table["level"] in ("easy", "medium", "hard")
    has_skeleton = "stub" in told.table or told.notebook[:2] in OF_KERNELS
    assert len(told.table["hints"]) in ((3,) if has_skeleton else (2, 3))
    assert len(told.wrong) >= 1


@each
def test_a_plan_tells_what_and_not_how(blank: Blank) -> None:
    assert (1 if blank.file == "pages" else 3) <= blank.num_lines <= 15
    assert len(plan(blank)) <= -(-blank.num_lines // 3)
    assert not [line for line in plan(blank) if GIVEN_AWAY.search(line)]


def test_answers_opens_all_of_a_notebook() -> None:
    shown = answers(12)._repr_markdown_()
    assert all(one in shown for one in ("`add_warps`", "mid = i // 2", "`warp_tree`"))
    with pytest.raises(ValueError, match="number is 99"):
        answers(99)


def lines_of_kernels() -> list[tuple[str, str, list[str]]]:
    """(file, function, its lines of code that no file before has) of each kernel's functions."""
    found, seen = [], {}
    for file in BACKENDS:
        text = text_of(file)
        for name, node in functions_in(text).items():
            if not name.startswith("launch_"):
                lines = code_lines(excerpt(text, node))
                found.append((file, name, [x for x in lines if x not in seen.get(name, ())]))
                seen[name] = lines
    return found


def test_at_least_60_percent_of_the_kernels_is_written_by_the_reader() -> None:
    stubs = {(blank.file, blank.function): code_lines(blank.stub) for blank in BLANKS}
    kernels = lines_of_kernels()
    lines = sum(len(own) for _, _, own in kernels)
    by_reader = sum(
        line not in stubs[file, name]
        for file, name, own in kernels
        if (file, name) in stubs
        for line in own
    )
    assert by_reader >= 0.6 * lines, f"{by_reader} of {lines}"


SECTION = re.compile(r"^# (\d\d) · .*$", re.MULTILINE)


def lines_of_bodies(text: str) -> int:
    """Lines of code in the functions and methods of a text, without their signatures."""
    found = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = "\n".join(text.splitlines()[node.body[0].lineno - 1 : node.end_lineno])
            found += len(code_lines(body))
    return found


def test_at_least_half_of_01_to_06_is_written_by_the_reader() -> None:
    """Of what stands in pages.py; without Pages, which puts the functions of 03 together."""
    text = inspect.getsource(our_pages)
    (pages,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "Pages")
    text = text.replace(excerpt(text, pages), "")
    _, *pieces = SECTION.split(text)
    for number, section in zip(pieces[::2], pieces[1::2], strict=True):
        if number < "07":
            written = sum(b.num_lines for b in BLANKS if b.notebook.startswith(number))
            assert written >= 0.5 * lines_of_bodies(section), number


def test_ours_has_the_constants_of_the_readers_notebook() -> None:
    blank = all_blanks()["qk_dot"]
    stub = function_of(blank, blank.stub, HEAD_SIZE=96, BLOCK_SIZE=32)
    ours = attempt("qk_dot", stub).py_func.__globals__
    assert (ours["HEAD_SIZE"], ours["THREAD_GROUP_SIZE"]) == (96, 1)


@pytest.mark.parametrize("notebook", sorted({told.notebook for told in TOLD}))
def test_a_notebook_holds_its_blanks_and_exercises_as_they_are(notebook: str) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", as_version=4)
    blanks = [one for one in BLANKS if one.notebook == notebook]
    exercises = [one for one in exercises_of(notebook) if one not in blanks]
    assert not fill(cells, exercises, blanks), "run `make refresh`"
    marked = [cell for cell in cells.cells if {"exercise", "blank"} & cell.metadata.keys()]
    assert len(marked) == 4 * len(exercises) + 3 * len(blanks)
