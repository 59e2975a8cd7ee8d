"""Every figure states its finding, and those in figures/ are what the code draws.

Of the others, test_notebooks compares the PNGs that notebooks show.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from same_output import require_same

from pa_tutorial.kernels import evidence
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import __main__ as viz
from pa_tutorial.viz import style
from pa_tutorial.viz.__main__ import FIGURES, PAGES
from pa_tutorial.viz.blocks import snapshot
from pa_tutorial.viz.layouts import byte_runs, sectors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "figures"
# Modules whose figures are drawn from runs of kernels: Macs have another numba.cuda.
OF_KERNELS = {
    *("first_kernel", "keys"),
    *("partitions", "poster", "qk", "query", "rows", "wide"),
}


@pytest.fixture
def require_committed(record_property: Callable) -> Callable[[str, str], None]:
    """require_committed(file, what the code draws)"""

    def require(file: str, drawn: str) -> None:
        committed = (FOLDER / file).read_bytes().decode()
        require_same([drawn], [committed], f"{file}, which `make refresh` writes", record_property)

    return require


@pytest.fixture
def as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler says is taken from the record; test_kernel_comparison asks the compiler."""
    monkeypatch.setattr(evidence, "is_asked", lambda: False)


def is_of_kernels(name: str) -> bool:
    return FIGURES[name].__module__.rpartition(".")[2] in OF_KERNELS


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.macos] * is_of_kernels(n)) for n in FIGURES]
)
@pytest.mark.usefixtures("as_recorded")
def test_figure_states_its_finding_and_is_what_pages_show(
    name: str, require_committed: Callable
) -> None:
    figure = FIGURES[name]()
    assert len(figure.get_suptitle().split()) >= 6, "the title is a sentence"
    assert figure.get_figwidth() == style.WIDTH, "as wide as a notebook"
    if (FOLDER / f"{name}.svg").exists():
        require_committed(f"{name}.svg", style.svg(figure).decode())


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_what_the_code_writes_and_small(
    name: str, tmp_path: Path, require_committed: Callable
) -> None:
    PAGES[name]().save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_bytes()
    require_committed(f"{name}.html", page.decode())
    assert len(page) < 3e6


def test_a_file_in_figures_is_drawn_by_nothing_or_shown_by_no_page() -> None:
    drawn = {*(f"{name}.svg" for name in FIGURES), *(f"{name}.html" for name in PAGES)}
    patterns = ("*.md", "notebooks/*.md", "pa_tutorial/**/README.md")
    pages = [page for pattern in patterns for page in ROOT.glob(pattern)]
    linked = re.compile(r"\]\((?:\.\./)*figures/([\w.]+)\)")
    shown = {file for page in pages for file in linked.findall(page.read_text(encoding="utf-8"))}
    assert {path.name for path in FOLDER.iterdir()} == shown
    assert shown <= drawn


def test_slides_are_drawn_elsewhere_than_into_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cache(lambda: style.new_figure("A title", 1)[0])
    monkeypatch.setattr(viz, "FIGURES", {"shown": plain, "other": plain})
    monkeypatch.setattr(viz, "PAGES", {})
    monkeypatch.setattr("sys.argv", ["viz"])
    monkeypatch.chdir(tmp_path)
    viz.main()
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert written == {f"build/figures/{n}.{form}" for n in viz.FIGURES for form in ("svg", "png")}


def lightness(color: str) -> float:
    return sum(w * int(color[i : i + 2], 16) for w, i in ((0.299, 1), (0.587, 3), (0.114, 5)))


def test_palette_can_be_told_apart_in_grey() -> None:
    """Neighbours in lightness of the colours that meet in one figure are not equal."""
    grey = [lightness(color) for color in (style.Q, style.K, style.LOGITS)]
    gaps = np.diff(sorted(grey))
    assert gaps.min() > 5


def test_no_sequence_can_be_taken_for_a_tensor() -> None:
    tensors = [lightness(color) for color in (style.Q, style.K, style.V, style.LOGITS, style.OUT)]
    sequences = [lightness(color) for color in style.SEQUENCES]
    assert all(grey < min(tensors) or grey > max(tensors) for grey in sequences)
    assert min(abs(np.diff(sequences))) > 20  # neighbours


# What the pictures of blocks and layouts are drawn from


def test_a_frame_is_the_state_at_its_moment() -> None:
    pool = PrefixCachingAllocator(7)
    tables = {"a": BlockTable(pool, 4), "elsewhere": BlockTable(PrefixCachingAllocator(7), 4)}
    tables["a"].append(range(14))
    tables["b"] = tables["a"].fork()
    tables["a"].slide(6)
    tables["elsewhere"].append([1])
    before = snapshot("", pool, tables)
    tables["a"].free()
    after = snapshot("", pool, {"b": tables["b"]})
    tables["b"].free()

    assert before.tables == {"a": (0, 0, 3, 4), "b": (1, 2, 3, 4)}
    assert [(b.ref_count, b.owners) for b in before.blocks[:5]] == [
        (0, ()),
        (1, ("b",)),
        (1, ("b",)),
        (2, ("a", "b")),
        (2, ("a", "b")),
    ]
    assert [block.tokens for block in before.blocks[2:5]] == [
        (4, 5, 6, 7),
        (8, 9, 10, 11),
        (12, 13),
    ]
    assert (before.num_used, after.num_used) == (4, 4)
    cached = snapshot("", pool, {})
    assert [block.tokens for block in cached.blocks[3:5]] == [(8, 9, 10, 11), ()]
    assert cached.num_used == 0


def test_bytes_that_touch_are_one_piece() -> None:
    sizes = (5, 2, 16, 4)
    token = [(3, 1, 2, dim) for dim in range(16)]
    for layout, k_pieces, v_pieces in ((VllmLayout(*sizes), 4, 16), (PlainLayout(*sizes), 1, 1)):
        assert len(byte_runs(layout.k_element, 4, token)) == k_pieces
        runs = byte_runs(layout.v_element, 4, token)
        assert len(runs) == v_pieces
        assert sum(end - first for first, end in runs) == 16 * 4


def test_a_sector_counts_once_however_much_of_it_is_read() -> None:
    assert sectors([(0, 4), (8, 12), (28, 32)]) == 1
    assert sectors([(28, 36)]) == 2
    assert sectors([(0, 128)]) == 4
