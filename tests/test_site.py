"""The walk as a site: built once, its links followed, its pages opened in Chromium."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parent.parent

pytest.importorskip("myst_nb", reason="Sphinx builds the site: an optional extra")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-qWc", "docs", "--keep-going"]
    command += ["-d", str(out.parent / "doctrees"), ".", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return out


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.links, self.ids = path, set[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        told = dict(attributes)
        self.ids |= {told[name] for name in ("id", "name") if told.get(name)}
        self.links |= {told[name] for name in ("href", "src") if told.get(name)}


def test_every_link_inside_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    wrong = []
    for page in pages.values():
        for link in page.links:
            target, place = urldefrag(link)
            if re.match(r"[a-z]+:", link) or "?" in target:
                continue
            path = (page.path.parent / unquote(target)).resolve() if target else page.path
            ids = pages[path].ids if path in pages else set()
            if not path.is_file() or (place and place not in ids):
                wrong.append(f"{page.path.name}: {link}")
    assert not wrong


@pytest.fixture
def page(browser, site: Path) -> Iterator:
    """A browser's page that may log nothing and request nothing but files of the site."""
    page, wrong = browser.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda asked: wrong.append(asked.url))
    page.on("request", lambda asked: asked.url.startswith(site.as_uri()) or wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_notebooks_fit_the_screen(page, site: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in [site / "README.html", *site.glob("notebooks/*.html")]:
        page.goto(path.as_uri())
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, path.name


def test_the_microscope_steps_in_a_page(page, site: Path) -> None:
    page.goto((site / "notebooks/09_query_and_key.html").as_uri())
    frame = page.frame_locator("iframe.microscope")
    before = frame.locator(".sentence").inner_text()
    frame.locator(".microscope").press("ArrowRight")
    assert frame.locator(".sentence").inner_text() != before


def test_search_finds_a_word_without_a_network(page, site: Path) -> None:
    page.goto((site / "search.html").as_uri() + "?q=q_vecs")
    page.locator("#search-results li").first.wait_for()
    assert "09" in page.locator("#search-results").inner_text()
