"""The walk as a site: built once, its links followed, its pages opened in Chromium."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parent.parent
SCREENS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]

pytest.importorskip("myst_nb", reason="Sphinx builds the site: an extra of its own")


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


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_link_inside_leads_to_a_page_and_a_place_in_it(pages: dict[Path, Page]) -> None:
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


def test_the_whole_is_small(site: Path) -> None:
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 20e6


def test_the_main_path_leads_from_page_to_page(site: Path) -> None:
    """By the button "Next", from the front page through 00 to 12 and 18, then the side trips."""
    page, numbers = site / "README.html", []
    while len(numbers) < 19:
        text = page.read_text(encoding="utf-8")
        (link,) = re.findall(r'class="next-page" href="([^"]+)"', text)
        page = (page.parent / link).resolve()
        numbers.append(int(page.name[:2]))
    assert numbers == [*range(13), 18, *range(13, 18)]


@pytest.fixture
def opened(browser, site: Path, request) -> Iterator:
    """A page of a browser that may say nothing and ask for nothing but files of the site."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda asked: wrong.append(asked.url))
    page.on("request", lambda asked: asked.url.startswith(site.as_uri()) or wrong.append(asked.url))
    yield page
    context.close()
    assert not wrong


@pytest.mark.parametrize("opened", SCREENS, indirect=True, ids=[f"{w}-{s}" for w, s in SCREENS])
def test_pages_open_quietly_and_at_once_and_fit_the_screen(
    opened, site: Path, pages: dict[Path, Page], request
) -> None:
    """All of them on the first screen; then those that are not the text of a file."""
    on_first, seconds = "1280-light" in request.node.name, []
    for path in pages.keys() - {site / "index.html"}:  # it leads away
        of_ours = path.parent.name == "notebooks" or path.name == "README.html"
        if of_ours or on_first:
            opened.goto(path.as_uri(), wait_until="load")
        if of_ours:
            wide = opened.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path.name
            took = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
            seconds.append(opened.evaluate(took))
    assert median(seconds) < 1


@pytest.mark.parametrize("opened", SCREENS[:1], indirect=True)
def test_the_microscope_is_stepped_in_a_page(opened, site: Path) -> None:
    opened.goto((site / "notebooks/09_query_and_key.html").as_uri())
    frame = opened.frame_locator("iframe.microscope")
    before = frame.locator(".sentence").inner_text()
    frame.locator(".microscope").press("ArrowRight")
    assert frame.locator(".sentence").inner_text() != before


@pytest.mark.parametrize("opened", SCREENS[1:2], indirect=True)
def test_a_dark_page_shows_its_pictures_on_paper(opened, site: Path) -> None:
    opened.goto((site / "notebooks/09_query_and_key.html").as_uri())
    color = "element => getComputedStyle(element).backgroundColor"
    assert opened.locator("body").evaluate(color) != "rgb(255, 255, 255)"
    pictures = opened.locator("article img")
    assert pictures.count() >= 4
    for picture in pictures.all():
        assert picture.evaluate(color) == "rgb(255, 255, 255)"
        assert picture.get_attribute("src").endswith(".svg")
        assert len(picture.get_attribute("alt")) > 20


@pytest.mark.parametrize("opened", SCREENS[:1], indirect=True)
def test_search_finds_a_word_without_a_network(opened, site: Path) -> None:
    opened.goto((site / "search.html").as_uri() + "?q=q_vecs")
    opened.locator("#search-results li").first.wait_for()
    assert "09" in opened.locator("#search-results").inner_text()
