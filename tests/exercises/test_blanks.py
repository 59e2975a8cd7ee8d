"""Blanks: the answer passes, wrong answers and unfinished ones get a verdict, plans tell little."""

import re
from collections.abc import Callable
from itertools import count

import nbformat
import pytest

from pa_tutorial.checks import attempt
from pa_tutorial.exercises.blank import YOUR_CODE, Blank, WrongAnswer, all_blanks, code_lines
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.cells import fill
from pa_tutorial.exercises.kernel_file import KernelFile
from pa_tutorial.text_changes import compiled
from tests.run_notebooks import NOTEBOOKS

BLANKS = list(all_blanks().values())
each = pytest.mark.parametrize("blank", BLANKS, ids=lambda blank: blank.name)
each_wrong = pytest.mark.parametrize(
    ("blank", "wrong"),
    [pytest.param(b, w, id=f"{b.name}-{w.new}") for b in BLANKS for w in b.wrong],
)
IMPORTS = "import math\nfrom numba import cuda, float32, int32, uint32\n\nWARP_SIZE = 32\n"
NUMBERS = count(1)
# An index, an offset, a distance or a mask as a formula.
GIVEN_AWAY = re.compile(r"\[[^\]]*\]|//|%|\*|\d|<|>")


def function_of(blank: Blank, text: str) -> Callable:
    """The blank's function from a text, as from a cell."""
    names: dict[str, object] = {}
    exec(compiled(IMPORTS + text, f"<cell {next(NUMBERS)}>"), names)
    return names[blank.function]


def plan(blank: Blank) -> list[str]:
    """Its comments, without the one beside the signature."""
    lines = [line.strip() for line in blank.stub.splitlines()]
    return [line for line in lines if line.startswith("#") and "# mark" not in line]


@each
def test_the_answer_passes_and_the_reader_goes_on_with_theirs(
    blank: Blank, capsys: pytest.CaptureFixture
) -> None:
    mine = function_of(blank, blank.source)
    assert attempt(blank.name, mine) is mine
    assert "goes on with yours" in capsys.readouterr().out


@each
def test_an_unwritten_blank_goes_on_with_ours(blank: Blank, capsys: pytest.CaptureFixture) -> None:
    ours = attempt(blank.name, function_of(blank, blank.stub))
    assert "not written yet" in capsys.readouterr().out
    assert attempt(blank.name, ours) is ours
    assert "still ours" in capsys.readouterr().out


@each_wrong
def test_a_wrong_answer_is_named(blank: Blank, wrong: WrongAnswer) -> None:
    words = verdict(blank, function_of(blank, wrong.made_in(blank.source)))
    assert wrong.says in words


@each
def test_a_stub_is_the_answer_without_what_the_reader_writes(blank: Blank) -> None:
    given = [line for line in code_lines(blank.stub) if not line.startswith(YOUR_CODE)]
    rest = iter(code_lines(blank.source))
    assert all(line in rest for line in given)  # in this order
    assert YOUR_CODE in blank.stub
    assert len(blank.hints) == 2
    assert len(blank.wrong) >= 2
    assert blank.level in ("easy", "medium", "hard")


@each
def test_a_plan_tells_what_and_not_how(blank: Blank) -> None:
    assert 3 <= blank.num_lines <= 15
    assert len(plan(blank)) <= -(-blank.num_lines // 3)
    assert not [line for line in plan(blank) if GIVEN_AWAY.search(line)]


def test_at_least_60_percent_of_the_kernels_is_written_by_the_reader() -> None:
    lines, written = 0, 0
    for file, name in FUNCTIONS:
        source = code_lines(KernelFile(file).source_of(name))
        lines += len(source)
        written += sum(b.num_lines for b in BLANKS if (b.file, b.function) == (file, name))
    assert written >= 0.6 * lines


@pytest.mark.parametrize("notebook", sorted({blank.notebook for blank in BLANKS}))
def test_a_notebook_holds_its_blanks(notebook: str) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", as_version=4)
    assert not fill(cells, [], [b for b in BLANKS if b.notebook == notebook]), "run `make refresh`"
