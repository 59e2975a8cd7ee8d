"""The walk as a site: built once, its links followed, its pages opened in Chromium."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytestmark = pytest.mark.rest("test_microscope_page.py; test_readmes.py looks for its pages")
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
        self.links, self.ids = set[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        told = dict(attributes)
        self.ids |= {told.get("id"), told.get("name")}
        self.links |= {told[name] for name in ("href", "src") if told.get(name)}


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            target, place = urldefrag(link)
            if re.match(r"[a-z]+:", link) or "?" in target:
                continue
            there = (path.parent / unquote(target)).resolve() if target else path
            assert there.is_file(), f"{path.name}: {link}"
            assert not place or place in pages[there].ids, f"{path.name}: {link}"


@pytest.fixture
def page(browser, site: Path) -> Iterator:
    """A browser's page that may log nothing and request nothing but files of the site."""
    page, wrong = browser.new_page(viewport={"width": 390, "height": 900}), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith(site.as_uri()) or wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


def test_the_front_page_leads_into_the_walk_by_the_ways_of_the_readme(page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    assert page.locator("a.begin").get_attribute("href") == "notebooks/00_start_here.html"
    listed = page.locator("p.list").evaluate_all("all => all.map((list) => list.innerText)")
    numbers = [re.findall(r"\b(\d\d) ·", text) for text in listed]
    assert numbers[0] == ["00", "07", "09", "10", "11", "12"]  # to watch it
    assert numbers[1] == [f"{number:02}" for number in range(16)]  # to write it
    assert [kernel[-1] for kernel in numbers[2:]] == ["24", "14"]  # to change Triton's, ROCm's
    frame = page.frame_locator("iframe.microscope")
    before = frame.locator(".sentence").inner_text()
    frame.locator(".microscope").press("ArrowRight")
    assert frame.locator(".sentence").inner_text() != before


def test_a_notebook_says_where_it_stands_and_leads_on(page, site: Path) -> None:
    page.goto((site / "notebooks/10_query_and_key.html").as_uri())
    assert page.locator("nav.place a[aria-current]").inner_text() == "10"
    assert page.locator("nav.place a").count() == 17
    assert "09_warps" in page.locator("a.prev-page").get_attribute("href")
    assert "11_softmax" in page.locator("a.next-page").get_attribute("href")


def test_a_shared_link_has_a_title_a_sentence_and_a_picture(site: Path) -> None:
    for path in [site / "index.html", *site.glob("notebooks/*.html")]:
        text = path.read_text(encoding="utf-8")
        told = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)">', text))
        assert told.keys() == {"title", "description", "type", "image"}, path.name
        assert len(told["description"].split()) >= 5, path.name
        assert (site / told["image"]).is_file()


def test_pages_of_notebooks_fit_a_telephone(page, site: Path) -> None:
    for path in [site / "index.html", site / "README.html", *site.glob("notebooks/*.html")]:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path.name


# What is wider than the text, and can't be scrolled to.
CUT = """() => {
    const overflow = (one) => getComputedStyle(one).overflowX;
    const scrolls = (one) => one && one.tagName !== "ARTICLE" &&
        (["auto", "scroll"].includes(overflow(one)) || scrolls(one.parentElement));
    const all = [...document.querySelectorAll("article *")];
    const seen = all.filter((one) => one.checkVisibility() && !scrolls(one));
    const boxes = seen.map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()]);
    return boxes.filter(([, box]) => box.width && (box.left < 0 || box.right > innerWidth + 1));
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "notebooks/10_query_and_key"])
def test_nothing_is_cut_at_any_width(page, site: Path, name: str, theme: str) -> None:
    """The text ends where the contents begin, and these end where the window does."""
    page.emulate_media(color_scheme=theme)
    page.goto((site / f"{name}.html").as_uri())
    for width in (*range(360, 1921, 120), 1008, 1009, 1135, 1312, 1313, 1439):
        page.set_viewport_size({"width": width, "height": 900})
        assert not page.evaluate(CUT), width
        text, contents = (page.locator(part).bounding_box() for part in (".content", ".toc-drawer"))
        assert text["x"] >= 0
        assert text["x"] + text["width"] <= width
        if contents and contents["x"] < width:  # in a narrow window they are a drawer, outside it
            assert text["x"] + text["width"] <= contents["x"]
            assert contents["x"] + contents["width"] <= width


@pytest.mark.parametrize("width", [360, 400, 1366])
def test_a_button_keeps_away_from_the_title(page, site: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((site / "notebooks/10_query_and_key.html").as_uri())
    button, title, theme = (
        page.locator(name).bounding_box()
        for name in ("button.answers", "article h1", ".theme-toggle-content")
    )
    assert button["y"] + button["height"] + 4 <= title["y"]
    if theme:  # in a wide window it is at the top right of the text
        below = button["y"] >= theme["y"] + theme["height"]
        assert below or button["x"] + button["width"] <= theme["x"]


@pytest.mark.parametrize("width", [360, 600, 1008, 1920])
def test_the_frame_of_a_microscope_cuts_nothing_off(page, site: Path, width: int) -> None:
    """Its border is inside the text's width, it fits the window, and what is in it scrolls down."""
    page.set_viewport_size({"width": width, "height": 700})
    page.goto((site / "notebooks/07_threads.html").as_uri())
    frame, around = page.locator("iframe.microscope"), page.locator(":has(> iframe.microscope)")
    box, room = frame.bounding_box(), around.bounding_box()
    assert room["x"] <= box["x"]
    assert box["x"] + box["width"] <= room["x"] + room["width"]
    assert box["height"] <= 700
    inside = page.frame_locator("iframe.microscope").locator("html")
    assert inside.evaluate("html => html.scrollWidth <= html.clientWidth")


def test_pictures_are_dark_in_the_dark(page, site: Path) -> None:
    """Their hues stay, light and dark change places: else each is a white box in a dark page."""
    page.goto((site / "notebooks/07_threads.html").as_uri())
    look = "all => all.map((picture) => getComputedStyle(picture).filter)"
    pictures = page.locator('iframe.microscope, img[src$=".svg"]')
    for theme, expected in (("dark", "invert(0.9) hue-rotate(180deg)"), ("light", "none")):
        page.emulate_media(color_scheme=theme)
        for chosen in ("auto", theme):
            page.evaluate(f"document.body.dataset.theme = '{chosen}'")
            assert {*pictures.evaluate_all(look)} == {expected}


@pytest.mark.parametrize("name", ["index.html", "README.html"])
def test_pictures_that_have_a_dark_style_are_not_made_dark_again(page, site, name) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto((site / name).as_uri())
    looks = "all => all.map((picture) => getComputedStyle(picture).filter)"
    for file in ("paging.svg", "blank_to_right.svg"):
        assert "prefers-color-scheme:dark" in (ROOT / "figures" / file).read_text(encoding="utf-8")
        assert page.locator(f'img[src$="{file}"]').evaluate_all(looks) == ["none"]


def test_answers_are_folded_and_one_button_opens_all(page, site: Path) -> None:
    page.goto((site / "notebooks/10_query_and_key.html").as_uri())
    folds = page.locator("article details")
    is_open = "all => all.map((fold) => fold.open)"
    assert folds.count() >= 4
    assert not any(folds.evaluate_all(is_open))
    assert not folds.first.locator("p, pre").first.is_visible()
    page.locator("button.answers").click()
    assert all(folds.evaluate_all(is_open))
    assert folds.last.locator("pre").first.is_visible()  # the answer's code, as a block
