"""The READMEs are true: their examples print what stands there, their links and commands exist.

An example is a Python block. The block without a language right after it, if there is one, is what
it prints, or the error that it ends in. On the pages beside the notebooks, a link to a cell or to a
file of the package has terms in backticks: [09 `qk_dot`](...), and they stand there.
"""

import re
import runpy
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.kernels import running

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pa_tutorial"
READMES = [ROOT / "README.md", ROOT / "tests" / "README.md", *sorted(PACKAGE.rglob("README.md"))]
PAGES = ("INDEX", "ERRATA", "QUESTIONS", "MONDAY")
DOCUMENTS = [*READMES, ROOT / "COURSE.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS += sorted((ROOT / "notebooks").glob("*"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
PLACE = r"\(([^)#\s]+\.(?:ipynb|py))(?:#(?:cell-id=)?([\w-]+))?\)"
LINK = re.compile(r"\[((?:`[^`]*`|[^\[\]`])*)\]" + PLACE)
ROW = re.compile(r"^\| (?!---|what is said)", re.MULTILINE)
MOST_BOXES = 8
TARGETS = set(
    re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
)


def text(path: Path) -> str:
    """A document as Markdown: of a notebook, its Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def examples() -> list:
    """Code and what it prints."""
    return [
        pytest.param(
            *example.groups(),
            id=f"{readme.parent.name}-{number}",
            marks=[pytest.mark.triton] * ("import triton" in example[1]),
        )
        for readme in READMES
        for number, example in enumerate(EXAMPLE.finditer(text(readme)), start=1)
    ]


@pytest.mark.parametrize(("code", "printed"), examples())
def test_an_example_does_not_print_what_stands_there(
    code: str,
    printed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Pasted into a new Python. A kernel's text is read from its file, so there is one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_said", False)
    file = tmp_path / "example.py"
    file.write_text(code, encoding="utf-8")
    try:
        runpy.run_path(str(file))
    except Exception as error:
        if f"{type(error).__name__}: " not in (printed or ""):
            raise
        print(f"{type(error).__name__}: {error}")
    assert printed in (None, capsys.readouterr().out)


def test_a_room_without_an_example() -> None:
    rooms = {path.parent for path in PACKAGE.glob("*/*.py")}
    rooms |= {ROOT, ROOT / "tests", PACKAGE / "viz" / "microscope"}
    assert not [r.name for r in rooms if r / "README.md" not in READMES]
    assert not [path for path in READMES if not EXAMPLE.search(text(path))]


def test_something_is_hidden_on_the_front_page() -> None:
    assert "<details" not in text(ROOT / "README.md")


@each_document
def test_a_link_leads_nowhere(path: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text(path), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", prose)
    assert not [link for link in links if "://" not in link and not (path.parent / link).exists()]


@each_document
def test_a_command_is_not_there(path: Path) -> None:
    """make, python -m and pytest, wherever a document names them."""
    named = text(path)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", named, re.MULTILINE)) <= TARGETS
    modules = set(re.findall(r"python3? -m (pa_tutorial[\w.]*\w)", named))
    assert not [module for module in modules if find_spec(module) is None]
    tests = set(re.findall(r"\btests/(?:\w+/)?[\w*]+\.py", named))
    assert not [test for test in tests if not any(ROOT.glob(test))]


# The pages beside the notebooks -----------------------------------------------------------------


def page(name: str) -> str:
    return text(ROOT / "notebooks" / f"{name}.md")


@cache
def cells(notebook: Path) -> dict[str, str]:
    """Id -> what a cell says and prints."""
    return {
        cell.id: "\n".join([cell.source, *(o.get("text", "") for o in cell.get("outputs", []))])
        for cell in nbformat.read(notebook, as_version=4).cells
    }


def links(text: str) -> Iterator[tuple[list[str], Path, str]]:
    """The terms of each link, the file it leads to, and the place there."""
    for label, file, place in LINK.findall(text):
        yield re.findall(r"`([^`]+)`", label), ROOT / "notebooks" / file, place


def says(text: str, term: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None


@pytest.mark.parametrize("name", PAGES)
def test_a_place_does_not_hold_the_term_of_its_link(name: str) -> None:
    wrong = []
    for terms, file, place in links(page(name)):
        if place or file.suffix == ".py":
            there = cells(file).get(place, "") if place else file.read_text(encoding="utf-8")
            if not terms or not all(says(there, term) for term in terms):
                wrong.append((terms, file, place))
    assert not wrong


def test_an_error_of_the_sources_or_a_question_has_no_cell() -> None:
    shown, read = page("ERRATA").split("## Read, not run")
    rows = [line for line in shown.splitlines() if ROW.match(line)]
    assert len(rows) + len(ROW.findall(read)) >= 58  # none gets lost
    assert not [row for row in rows if not list(links(row))]
    answers = [text for text in page("QUESTIONS").split("\n\n") if text.startswith("**")]
    assert len(answers) > 30
    assert not [text for text in answers if len(list(links(text))) != 1]


def test_too_many_boxes_of_bugs() -> None:
    notebooks = (ROOT / "notebooks").glob("*.ipynb")
    texts = [text for path in notebooks for text in cells(path).values()]
    assert sum("A bug you could make" in text for text in texts) <= MOST_BOXES
