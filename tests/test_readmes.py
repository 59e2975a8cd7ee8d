"""The READMEs are true: examples print what is shown, links and commands lead somewhere.

An example is a Python block. If a block without a language follows, the example prints it, or ends
in that error. On the pages beside the notebooks, the label of a link to a cell or to a file of the
package has terms in backticks, which must be there: [10 `qk_dot`](...).
"""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from jupyter_server.serverapp import ServerApp

from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.exercises import exercises_of
from pa_tutorial.kernels import cuda_launch
from pa_tutorial.viz.walk import PLAN

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", ROOT / "tests" / "README.md"]
READMES += sorted(
    page for room in ("simt", "pa_tutorial") for page in ROOT.glob(f"{room}/**/README.md")
)
DOCUMENTS = [*READMES, ROOT / "COURSE.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS += sorted((ROOT / "notebooks").glob("*.md"))
DOCUMENTS += sorted((ROOT / "notebooks").glob("*.ipynb"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(
    r"\[((?:`[^`]*`|[^\[\]`])*)\]"  # label
    r"\(([^)#\s]+\.(?:ipynb|py))(?:#(?:cell-id=)?([\w-]+))?\)"  # file and cell
)
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
        for readme in [*READMES, ROOT / "notebooks" / "QUESTIONS.md"]
        for number, example in enumerate(EXAMPLE.finditer(text(readme)), start=1)
    ]


@pytest.mark.parametrize(("code", "printed"), examples())
def test_an_example_prints_what_the_page_shows(
    code: str,
    printed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """A kernel's source is read from its file, so the example is in one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda_launch, "_said", False)
    file = tmp_path / "example.py"
    file.write_text(code, encoding="utf-8")
    try:
        runpy.run_path(str(file))
    except Exception as error:
        if f"{type(error).__name__}: " not in (printed or ""):
            raise
        print(f"{type(error).__name__}: {error}")
    assert printed in (None, capsys.readouterr().out)


def test_the_command_prints_what_the_simulators_page_shows() -> None:
    command = re.compile(
        r"^```\npython -m simt ([^\n]+)\n```\n\n```\n(.*?)^```", re.DOTALL | re.MULTILINE
    )
    words, shown = command.search(text(ROOT / "simt" / "README.md")).groups()
    run = [sys.executable, "-m", "simt", *words.split()]
    printed = subprocess.run(run, cwd=ROOT, capture_output=True, encoding="utf-8").stdout
    times = r"[\d.]+ s in"
    assert re.sub(times, "… s in", printed) == re.sub(times, "… s in", shown)


def files_linked_in(path: Path) -> list[Path]:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text(path), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", prose)
    return [path.parent / link for link in links if "://" not in link]


@each_document
def test_every_link_leads_somewhere(path: Path) -> None:
    assert not [file for file in files_linked_in(path) if not file.exists()]


def test_the_site_has_every_page_that_a_page_links_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_site.py builds it, in `make test-all` only."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    patterns = runpy.run_path(str(ROOT / "docs" / "conf.py"))["include_patterns"]
    pages = {page.resolve() for pattern in patterns for page in ROOT.glob(pattern)}
    linked = {file.resolve() for path in DOCUMENTS for file in files_linked_in(path)}
    assert not {file for file in linked if file.suffix in (".md", ".ipynb")} - pages


ROOMS = [page for page in READMES if (page.parent / "__init__.py").exists()]


@pytest.mark.parametrize("page", ROOMS, ids=lambda page: page.parent.name)
def test_every_file_that_a_room_names_is_in_it_or_above_it_or_a_test(page: Path) -> None:
    """NN_topic.py stands for the name of any notebook."""
    named = set(re.findall(r"`([\w/]+\.(?:py|toml|js|css))`", text(page)))
    folders = page.parent, ROOT / "tests"
    above = {n for n in named if any((up / n).exists() for up in (page.parent.parent, ROOT))}
    here = {name for name in named if any(any(folder.rglob(name)) for folder in folders)}
    assert not [name for name in named - above - here if "NN_topic" not in name]


@each_document
def test_every_command_exists(path: Path) -> None:
    """make, python -m and pytest, wherever a document names them."""
    named = text(path)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", named, re.MULTILINE)) <= TARGETS
    modules = set(re.findall(r"python3? -m ((?:pa_tutorial|simt|tests)\b(?:\.\w+)*)", named))
    assert not [module for module in modules if find_spec(module) is None]
    tests = set(re.findall(r"\btests/(?:simt/)?(?:\w+/)?[\w*]+\.py", named))
    assert not [test for test in tests if not any(ROOT.glob(test))]


@each_document
def test_commands_to_type_come_after_the_environment_that_they_need(path: Path) -> None:
    """python3 is the machine's own, for `make gpu`."""
    page = text(path)
    command = re.search(
        r"^```\n(?:[^`\n].*\n)*?(?:python -m (?:pa_|simt)|pytest |pip |jupyter )",
        page,
        re.MULTILINE,
    )
    before = page[: command.end()] if command else "activate"
    assert re.search("activate|^conda env create", before, re.IGNORECASE | re.MULTILINE)


@each_document
def test_no_command_has_a_comment_after_it(path: Path) -> None:
    """Typed into zsh, which is a Mac's shell, # and what follows are arguments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text(path), re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    command = r"(?:make|python3?|pip|pytest|source|jupyter|conda|git|cd|!\w+|\.venv\S+) .*\s#"
    assert not [line for line in lines if re.match(command, line)]


def test_jupyterlab_starts_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given only a notebook, its root is notebooks/, and every link to another folder is dead."""
    (arguments,) = re.findall(r"^jupyter lab (.*)$", text(ROOT / "README.md"), re.MULTILINE)
    monkeypatch.chdir(ROOT)
    app = ServerApp()
    app.parse_command_line(arguments.split())
    assert Path(app.root_dir) == ROOT
    assert Path(app.file_to_run) == ROOT / "notebooks" / "00_start_here.ipynb"


@cache
def cells(notebook: Path) -> dict[str, str]:
    """Id -> a cell's source and what it prints."""
    return {
        cell.id: "\n".join([cell.source, *(o.get("text", "") for o in cell.get("outputs", []))])
        for cell in nbformat.read(notebook, as_version=4).cells
    }


def places(page: Path) -> Iterator[tuple[list[str], str]]:
    """The terms of each link to a cell, and the text of the cell.

    Names in the package's code may change: `make refresh` prints what INDEX calls by an old name.
    """
    for label, name, cell in LINK.findall(text(page)):
        if cell:
            yield re.findall(r"`([^`]+)`", label), cells(page.parent / name).get(cell, "")


@pytest.mark.parametrize("name", ["INDEX", "ERRATA", "GLOSSARY", "QUESTIONS", "MONDAY"])
def test_the_place_that_a_link_leads_to_has_its_terms(name: str) -> None:
    for terms, there in places(ROOT / "notebooks" / f"{name}.md"):
        assert terms, there
        for term in terms:
            assert re.search(rf"(?<!\w){re.escape(term)}(?!\w)", there), term


def test_what_monday_says_that_you_write_is_yours_to_write() -> None:
    """The column in the middle of its tables; what is given there is in the last."""
    page = text(ROOT / "notebooks" / "MONDAY.md")
    written = re.findall(r"^\| [^|]+ \| ([^|]+) \|[^|]*\|$", page, re.MULTILINE)
    links = LINK.findall("\n".join(written))
    assert links
    for label, notebook, _ in links:
        (name,) = re.findall(r"`(\w+)`", label)
        assert name in {one.name for one in exercises_of(Path(notebook).stem)}


def test_notebooks_link_to_terms_of_the_glossary_and_leave_none_out() -> None:
    terms = re.findall(r'^<a id="([\w-]+)"></a>\*\*', text(ROOT / "notebooks/GLOSSARY.md"), re.M)
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    linked = {path.stem: re.findall(r"GLOSSARY\.md#([\w-]+)\)", text(path)) for path in notebooks}
    assert not [name for name, found in linked.items() if not found]
    assert not [name for name, found in linked.items() if len(set(found)) < len(found)], "once"
    assert {term for found in linked.values() for term in found} == set(terms)


def test_the_map_on_the_front_page_shows_the_ladder() -> None:
    before = {name: stage.checked_against for name, stage in STAGES.items()}
    assert {name: stages for name, _, _, stages, _ in PLAN} == before
