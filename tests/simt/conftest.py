"""For this folder alone, where only the simulator is installed: python -m pytest tests/simt.

Among the walk's tests, tests/conftest.py selects and skips.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from simt.__main__ import main
from tests.simt.absent import reason
from tests.simt.fixtures import browser, chromium_path, interrupts_arrive, read_page

__all__ = ["browser", "chromium_path", "interrupts_arrive", "read_page"]  # pytest looks for them

IS_ALONE = not Path(__file__).parents[1].joinpath("conftest.py").exists()
MARKERS = ("rest: takes long", "hours: takes hours", "needs(what)", "macos: runs on a Mac")


def pytest_configure(config: pytest.Config) -> None:
    if IS_ALONE:
        for marker in MARKERS:
            config.addinivalue_line("markers", marker)
        config.option.markexpr = config.option.markexpr or "not rest and not hours"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if IS_ALONE else ():
        for mark in item.iter_markers("needs"):
            if why := reason(*mark.args):
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., SimpleNamespace]:
    """command(*arguments), in an empty folder: what it prints and the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> SimpleNamespace:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run
