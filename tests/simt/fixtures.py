"""A browser for pages, and a Ctrl-C that arrives."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture
def interrupts_arrive() -> Iterator[None]:
    """SIGINT interrupts even if a shell started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The first that runs: Ubuntu's script of this name only asks for a snap."""
    for path in filter(None, map(shutil.which, CHROMIUM)):
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    pytest.skip("needs Chromium, for example by apt-get install chromium")


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator:
    """Closed at the end of a module: while Playwright is open, no other test can run asyncio."""
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        # root, as in a container, must do without the sandbox
        browser = playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def read_page(browser) -> Iterator[Callable]:
    """read_page(html, ...): a Reader. No page may write to its console or load anything."""
    from tests.simt.microscope.reader import Reader

    readers: dict[str, Reader] = {}

    def read(html: Path, **options: object) -> Reader:
        readers[html.as_uri()] = reader = Reader(browser, html, **options)
        return reader

    yield read
    for uri, reader in readers.items():
        reader.page.close()
        assert reader.problems == [], "the page wrote to the console"
        assert reader.requests == [uri], "the page loaded something"
