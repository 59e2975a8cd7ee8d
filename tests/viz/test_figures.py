"""Every picture states its finding, and those in figures/ are what the code draws.

Of the others, test_notebooks compares those that notebooks show.
"""

import re
from pathlib import Path

import pytest

from pa_tutorial.viz import __main__ as viz
from pa_tutorial.viz import style, walk
from pa_tutorial.viz.__main__ import MOVING, PAGES
from tests.refresh import FIGURES, drawn
from tests.same_output import require_same

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "figures"


def require_committed(file: str, drawn: str) -> None:
    committed = (FOLDER / file).read_bytes().decode()
    require_same([drawn], [committed], f"{file}, which `make refresh` writes")


@pytest.mark.rest("test_notebooks.py, for the figures that notebooks show")
@pytest.mark.parametrize("name", FIGURES)
def test_figure_states_its_finding_and_is_what_pages_show(name: str) -> None:
    figure = FIGURES[name]()
    assert len(figure.get_suptitle().split()) >= 6, "the title is a sentence"
    assert figure.get_figwidth() == style.WIDTH, "as wide as a notebook"
    require_committed(f"{name}.svg", drawn(name).decode())


@pytest.mark.rest("test_microscope_page.py opens a page that is made of the same parts")
@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_what_the_code_writes_and_small(name: str, tmp_path: Path) -> None:
    PAGES[name]().save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_bytes()
    require_committed(f"{name}.html", page.decode())
    assert len(page) < 3e6


def test_every_file_in_figures_is_drawn_by_code_and_shown_by_a_page() -> None:
    drawn = {f"{name}.svg" for name in FIGURES | MOVING} | {f"{name}.html" for name in PAGES}
    patterns = ("*.md", "notebooks/*.md", "pa_tutorial/**/README.md")
    pages = [page for pattern in patterns for page in ROOT.glob(pattern)]
    linked = re.compile(r"\]\((?:\.\./)*figures/([\w.]+)\)")
    shown = {file for page in pages for file in linked.findall(page.read_text(encoding="utf-8"))}
    assert {path.name for path in FOLDER.iterdir()} == shown == drawn


@pytest.mark.parametrize("path", sorted(viz.NOTEBOOKS.glob("[0-9]*.ipynb")), ids=lambda p: p.stem)
def test_every_notebook_shows_pictures_of_one_width(path: Path) -> None:
    found = {name: svg.decode() for name, svg, _ in viz.pictures(path)}
    assert found
    widths = {re.search(r'<svg [^>]*?width="([\d.]+)pt"', text)[1] for text in found.values()}
    assert widths == {f"{style.WIDTH * 72:g}"}
    alts = re.findall(r'"alt": "(.*)"', path.read_text(encoding="utf-8"))
    assert len(alts) == len(found)
    assert min(len(alt.split()) for alt in alts) >= 6, "the title is a sentence"


def test_slides_are_pictures_of_notebooks_and_figures_of_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viz, "FIGURES", {"map": walk.draw_map})
    monkeypatch.setattr(viz, "MOVING", {})
    monkeypatch.setattr(viz, "PAGES", {})
    monkeypatch.setattr("sys.argv", ["viz"])
    monkeypatch.chdir(tmp_path)
    viz.main()
    written = {path.name for path in (tmp_path / "build" / "figures").iterdir()}
    assert {"map.svg", "map.png", "21-multiprocessor.svg", "10-blocks-of-warps.png"} <= written
