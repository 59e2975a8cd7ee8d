"""What takes seconds says how far it is, where a person looks, and leaves nothing behind."""

import io
import re
import sys
import time
from types import SimpleNamespace

import pytest

from pa_tutorial.checks import check, progress
from pa_tutorial.checks.progress import HIDDEN


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_by(monkeypatch: pytest.MonkeyPatch, name: str, file: io.StringIO) -> str:
    """What a check of cases that take 0.02 seconds prints into sys.stdout or sys.stderr."""
    monkeypatch.setattr(sys, name, file)
    check("full_recompute", lambda *_: time.sleep(0.02), raises=False)
    return file.getvalue()


def test_it_is_shown_in_a_terminal_and_in_a_notebook_there_as_output_and_then_wiped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(HIDDEN, raising=False)
    monkeypatch.setattr(progress, "DELAY", 60.0)
    assert shown_by(monkeypatch, "stderr", Terminal()) == "", "it ended before"
    monkeypatch.setattr(progress, "DELAY", 0.0)
    shown = shown_by(monkeypatch, "stderr", Terminal())
    assert re.search(r"full_recompute: \d+ of 16 cases done, \d\d:\d\d left", shown)
    assert shown.rpartition("left")[2].strip() == ""
    assert shown_by(monkeypatch, "stderr", io.StringIO()) == "", "a file or a pipe"
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert "of 16 cases done" in shown_by(monkeypatch, "stdout", io.StringIO())
    monkeypatch.setenv(HIDDEN, "1")
    assert shown_by(monkeypatch, "stdout", io.StringIO()) == "", "it is run for its outputs"
