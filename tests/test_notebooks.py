"""Every notebook runs in a clean kernel, without a warning, and prints what is committed."""

from pathlib import Path

import nbformat
import pytest

from pa_tutorial.kernels.compiled.report import ASKING
from pa_tutorial.viz.style import SVG_ONLY
from tests.run_notebooks import METADATA, NOTEBOOKS, execute, filled_twice, keep, outputs
from tests.same_output import require_same

MARKS = {
    "07_threads": [pytest.mark.macos],
    "09_warps": [pytest.mark.macos],
    "10_query_and_key": [pytest.mark.macos],
    "24_triton": [pytest.mark.triton],
}
PATHS = [
    pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, ()))
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
]
RUN_ONCE = ("23_cpu_kernel", "25_measuring")  # they compile for long, and have few pictures


@pytest.mark.parametrize("path", PATHS)
def test_a_notebook_runs_and_prints_what_is_committed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_png = path.stem in RUN_ONCE
    if not with_png:
        monkeypatch.setenv(SVG_ONLY, "1")
    require_committed_outputs(path, with_png)


@pytest.mark.rest("SVGs are compared; a record is for a source, its constants and types")
@pytest.mark.parametrize("path", [param for param in PATHS if param.id not in RUN_ONCE])
def test_a_notebook_gets_the_same_pngs_and_answers_of_the_compiler(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASKING, "1")
    require_committed_outputs(path, with_png=True)


WIDE, USUAL = (96, 32, "torch.bfloat16"), (64, 16, "torch.float16")


@pytest.mark.rest("test_kernel_pictures.py: figures at other sizes; the cases have all sizes")
@pytest.mark.parametrize(("number", "sizes"), [(10, USUAL), (12, WIDE), (13, USUAL), (14, WIDE)])
def test_a_notebook_ends_with_a_readers_sizes(number: int, sizes: tuple, tmp_path: Path) -> None:
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    text = path.read_text(encoding="utf-8")
    together = "HEAD_SIZE, BLOCK_SIZE, DTYPE = {}, {}, {}".format
    apart = "HEAD_SIZE = {}  #", "BLOCK_SIZE = {}  #", "DTYPE = {}  #"  # in 13
    given = 32, 8, "torch.float16"
    new = text.replace(together(*given), together(*sizes))
    for line, old, size in zip(apart, given, sizes, strict=True):
        new = new.replace(line.format(old), line.format(size))
    assert new != text
    (tmp_path / path.name).write_text(new, encoding="utf-8")
    execute(tmp_path / path.name)


# The reader's files are written, so what these say changes from one run to the next.
SAYS_WHAT_IS_SAVED = "saved(", "save(", "my_pages()", "save_pages("
NOT_RIGHT = "not yet", "not written", "still ours", "goes on with ours"
# Of the others, the longest to run: the answers are the kernels of the stages, or exercises.
FURTHER = pytest.mark.rest("test_ladder.py, and the notebooks of FILLED_ALWAYS")
FILLED_ALWAYS = "06", "07", "09"
FILLED = [
    pytest.param(path, id=path.stem, marks=[] if path.stem[:2] in FILLED_ALWAYS else [FURTHER])
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
]


@pytest.mark.parametrize("path", FILLED)
def test_a_filled_notebook_is_right_and_gives_the_same_when_run_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SVG_ONLY, "1")
    first, again = filled_twice(path, tmp_path / "my_kernel")
    for one, other in zip(first.cells, again.cells, strict=True):
        shown = outputs(one, with_png=False)
        assert "error" not in [output.output_type for output in one.get("outputs", [])], shown
        said = [words for words in NOT_RIGHT if words in str(shown)]
        assert "attempt(" not in one.source or not said, shown
        is_live = "live" in one.metadata.get("tags", [])  # shows this machine
        if not is_live and not any(words in one.source for words in SAYS_WHAT_IS_SAVED):
            require_same(outputs(other, with_png=False), shown, f"run twice:\n{one.source}")


def require_committed_outputs(path: Path, with_png: bool) -> None:
    committed = nbformat.read(path, as_version=4)
    assert committed.metadata == METADATA
    fresh = execute(path)
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
    for old, new in zip(committed.cells, keep(fresh).cells, strict=True):
        place = f"{path.stem}; run `make refresh`. The cell:\n{new.source}"
        require_same(outputs(new, with_png), outputs(old, with_png), place)
