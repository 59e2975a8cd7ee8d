"""INDEX.md and ERRATA.md are up to date, lead to places that exist, and show it by running."""

import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pa_tutorial.index.engine import ENGINE
from pa_tutorial.index.entry import Cell, Erratum, Line, Question, Said, Source, Symbol, VllmFile
from pa_tutorial.index.errata import ERRATA, NOT_RUN
from pa_tutorial.index.find import ROOT, EntryError, find_cell, find_line, find_run, read_cells
from pa_tutorial.index.questions import MORE_QUESTIONS, QUESTIONS
from pa_tutorial.index.sources import DIVE, SOURCES
from pa_tutorial.index.write import FILES, index
from pa_tutorial.index.write_errata import errata

NOTEBOOKS = ROOT / "notebooks"
GENERATORS = {"INDEX.md": index, "ERRATA.md": errata}
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)#([^)]+)\)")

each_file = pytest.mark.parametrize("name", GENERATORS)
each_question = pytest.mark.parametrize(
    "question", [*QUESTIONS, *MORE_QUESTIONS], ids=lambda question: question.text
)


@each_file
def test_committed_file_is_what_the_generator_writes(name: str) -> None:
    is_current = (NOTEBOOKS / name).read_text(encoding="utf-8") == GENERATORS[name]()
    assert is_current, f"{name} is out of date: run `make index`"


@each_file
def test_every_link_leads_to_something(name: str) -> None:
    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    links = LINK.findall(text)
    assert len(links) == text.count("]("), "a link has no line or cell"
    for path, place in links:
        file = NOTEBOOKS / path
        assert file.is_file(), path
        if file.suffix == ".ipynb":
            ids = [cell.id for cell in read_cells(file)]
            assert place.removeprefix("cell-id=") in ids, f"{path} has no cell {place}"
        else:
            rows = file.read_text(encoding="utf-8").splitlines()
            line = int(place.removeprefix("L"))
            assert line <= len(rows), f"{path} has {len(rows)} lines and no {place}"
            assert rows[line - 1].strip(), f"{path}: {place} is empty"


@each_file
def test_links_name_the_number_of_the_cell(name: str) -> None:
    link = r"\[(\d\d), cell (\d+): [^\]]+\]\(([^)#]+)#cell-id=([^)]+)\)"
    named = re.findall(link, GENERATORS[name]())
    assert named
    for prefix, number, path, cell_id in named:
        cells = read_cells(NOTEBOOKS / path)
        assert path.startswith(prefix)
        assert cells[int(number) - 1].id == cell_id


def test_every_symbol_has_a_line_and_a_cell() -> None:
    for file in FILES:
        names = [symbol.name for symbol in file.symbols]
        assert len(set(names)) == len(names), f"a name stands twice in {file.path}"
        for symbol in file.symbols:
            assert symbol.lines, symbol.name
            assert symbol.cells, symbol.name


def test_commits_look_like_commits() -> None:
    assert {file.version for file in ENGINE} == {"version 0"}, "as the source walks through it"
    others = {file.path: file.version for file in FILES if not file.version.startswith("commit")}
    assert others == {
        **{file.path: "version 0" for file in ENGINE},
        "vllm/attention/backends/utils.py": "",
        "vllm/core/block/prefix_caching_block.py": "about version 0.7 or 0.8",
        "vllm/worker/worker.py": "version 0",
        "csrc/libtorch_stable/attention/merge_attn_states.cu": "",
    }
    commits = [file.version for file in FILES if file.path not in others]
    assert all(re.fullmatch(r"commit [0-9a-f]{8}", commit) for commit in commits)


def test_each_notebook_but_the_first_is_in_the_index() -> None:
    shown = {cell.notebook for file in FILES for symbol in file.symbols for cell in symbol.cells}
    asked = {cell.notebook for question in MORE_QUESTIONS for cell in question.cells}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} - shown - asked == {"00_start_here"}


@each_question
def test_question_is_answered_by_running(question: Question) -> None:
    assert question.text.endswith("?")
    assert question.answer.endswith(".")
    assert any(cell.is_code and cell.runnable for cell in find_run(question.text, question.cells))


# The errors of the sources ----------------------------------------------------------------------


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.claim)
def test_an_error_has_a_source_and_a_code_cell_that_runs(erratum: Erratum) -> None:
    assert {said.source for said in erratum.said} <= set(SOURCES)
    assert erratum.said
    assert not erratum.not_run
    assert any(cell.is_code and cell.runnable for cell in find_run(erratum.claim, erratum.cells))


@pytest.mark.parametrize("erratum", NOT_RUN, ids=lambda erratum: erratum.claim)
def test_an_error_that_no_run_shows_says_why(erratum: Erratum) -> None:
    assert {said.source for said in erratum.said} <= set(SOURCES)
    assert erratum.said
    assert erratum.not_run.endswith(".")


def test_errors_are_whole_sentences_and_stand_once() -> None:
    claims = [erratum.claim for erratum in (*ERRATA, *NOT_RUN)]
    assert len(set(claims)) == len(claims)
    assert all(erratum.truth.endswith(".") for erratum in (*ERRATA, *NOT_RUN))
    assert all(claim.endswith(".") for claim in claims)


def test_errors_stand_in_the_order_of_the_walk() -> None:
    first = [erratum.cells[0].notebook for erratum in ERRATA]
    assert first == sorted(first)


def test_the_sources_are_those_of_the_readme_and_all_are_cited() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = readme[readme.index("The walk grew out of five texts") :].split("\n")[0]
    assert [source.title for source in SOURCES] == re.findall(r"\*([^*]+)\*", named)[: len(SOURCES)]
    cited = {said.source for erratum in ERRATA for said in erratum.said}
    assert cited == set(SOURCES)


def boxes() -> list[tuple[str, int, str]]:
    """Notebook, number and text of each box in which a source is wrong, or leaves something out."""
    return [
        (path.stem, number, cell.source[cell.source.index(start) :])
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        for number, cell in enumerate(read_cells(path), start=1)
        for start in ("> **Where", "> **What a source")
        if cell.cell_type == "markdown" and start in cell.source
    ]


@pytest.mark.parametrize(
    ("notebook", "number", "text"), boxes(), ids=[f"{box[0][:2]}-{box[1]}" for box in boxes()]
)
def test_each_box_of_a_notebook_is_in_the_list(notebook: str, number: int, text: str) -> None:
    """By the first source that the box names, and a cell at most three away."""
    title = min((source.title for source in SOURCES if source.title in text), key=text.index)
    near = {
        said.source.title
        for erratum in ERRATA
        for cell in erratum.cells
        for said in erratum.said
        if cell.notebook == notebook and abs(find_cell(erratum.claim, cell).number - number) <= 3
    }
    assert title in near, f"{notebook}, cell {number}: no entry in pa_tutorial/index/errata.py"


RUN = (Cell("01_kv_cache", "as_written = torch.softmax("),)
SECTION_1 = (Said(DIVE, "section 1"),)
STRANGER = (Said(Source("Another text", "nobody"), "section 1"),)


@pytest.mark.parametrize(
    ("shown", "not_run", "message"),
    [
        ((Erratum("So.", (), "No.", RUN),), (), "So.: no source says it"),
        ((Erratum("So.", STRANGER, "No.", RUN),), (), "So.: 'Another text' is none of the sources"),
        ((Erratum("So.", SECTION_1, "No.", ()),), (), "So.: no code cell shows it"),
        ((), (Erratum("So.", SECTION_1, "No.", RUN),), "So.: it does not say why no cell shows it"),
    ],
    ids=["no source", "unknown source", "no cell", "no reason"],
)
def test_an_error_that_nobody_can_follow_is_refused(
    shown: tuple[Erratum, ...], not_run: tuple[Erratum, ...], message: str
) -> None:
    with pytest.raises(EntryError, match=f"^{re.escape(message)}"):
        errata(shown, not_run)


# What the generator refuses ---------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository: one file, one notebook."""
    (tmp_path / "ours.py").write_text("first = 1\ntwice = 2\ntwice = 3\n", encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    printed = [new_output("stream", text="1\n")]
    cells = [
        new_markdown_cell("# Title\n\ntext above the code"),
        new_code_cell("# no heading\nprint(1)", outputs=printed),
        new_markdown_cell("text below\n\n## Part\n\ntext of the part"),
        new_code_cell("silent = 1"),
        new_markdown_cell("far from any output; silent"),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "01_small.ipynb")
    return tmp_path


def small(text: str) -> Cell:
    return Cell("01_small", text)


def test_a_place_is_found(root: Path) -> None:
    assert find_line("entry", Line("ours.py", "first"), root) == 1
    found = find_cell("entry", small("print(1)"), root)
    assert (found.number, found.heading, found.is_code, found.runnable) == (2, "Title", True, True)


def test_the_heading_is_the_last_one_before_the_text(root: Path) -> None:
    assert find_cell("entry", small("text below"), root).heading == "Title"
    assert find_cell("entry", small("text of the part"), root).heading == "Part"
    assert find_cell("entry", small("silent = 1"), root).heading == "Part"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (Line("ours.py", "nowhere"), "x: 0 lines of ours.py have the text 'nowhere'; "),
        (Line("ours.py", "twice"), "x: 2 lines of ours.py have the text 'twice': 2, 3; "),
        (Line("theirs.py", "first"), "x: there is no file theirs.py"),
    ],
    ids=["missing", "ambiguous", "no file"],
)
def test_a_line_that_is_not_there_once_is_refused(root: Path, line: Line, message: str) -> None:
    with pytest.raises(EntryError, match=f"^{re.escape(message)}"):
        find_line("x", line, root)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (small("nowhere"), "x: 0 cells of 01_small have the text 'nowhere'; "),
        (small("silent"), "x: 2 cells of 01_small have the text 'silent': 4, 5; "),
        (Cell("02_none", "text"), "x: there is no notebook 02_none"),
    ],
    ids=["missing", "ambiguous", "no notebook"],
)
def test_a_cell_that_is_not_there_once_is_refused(root: Path, cell: Cell, message: str) -> None:
    with pytest.raises(EntryError, match=f"^{re.escape(message)}"):
        find_cell("x", cell, root)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((small("text above"), small("text below")), "Why?: no code cell shows it"),
        ((small("print(1)"), small("silent = 1")), "Why?: cell 4 of 01_small has no output"),
        ((small("print(1)"), small("far from")), "Why?: cell 5 of 01_small has no output"),
        ((), "Why?: no code cell shows it"),
    ],
    ids=["text only", "code without output", "text without output beside it", "nothing"],
)
def test_an_answer_that_does_not_run_is_refused(
    root: Path, cells: tuple[Cell, ...], message: str
) -> None:
    with pytest.raises(EntryError, match=f"^{re.escape(message)}"):
        find_run("Why?", cells, root)


def test_text_beside_an_output_may_answer_with_it(root: Path) -> None:
    cells = (small("text above"), small("print(1)"))
    assert [cell.number for cell in find_run("Why?", cells, root)] == [1, 2]


def test_the_index_names_the_entry_that_has_lost_its_place() -> None:
    file = FILES[0]
    symbol: Symbol = file.symbols[0]
    lost: VllmFile = replace(
        file, symbols=(replace(symbol, cells=(Cell("10_softmax_and_value", "nowhere"),)),)
    )
    with pytest.raises(EntryError, match=rf"^{re.escape(symbol.name)} in {re.escape(file.path)}"):
        index((lost,), (), ())
