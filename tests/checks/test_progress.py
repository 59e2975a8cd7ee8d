"""What takes seconds says how far it is, where a person looks, and leaves nothing behind."""

import io
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from pa_tutorial.checks import progress
from pa_tutorial.checks.progress import HIDDEN, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDDEN, raising=False)


def shown_by(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float, file: io.StringIO) -> str:
    """What three cases that take so long print into sys.stdout or sys.stderr."""
    monkeypatch.setattr(sys, name, file)
    assert [time.sleep(seconds) or case for case in with_progress("cuda_v1", "abc")] == [*"abc"]
    return file.getvalue()


def test_a_slow_check_says_how_many_cases_are_done_and_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.25)
    shown = shown_by(monkeypatch, "stderr", 0.3, Terminal())
    assert "cuda_v1: 1 of 3 cases done, 00:00 left" in shown
    assert "2 of 3" in shown
    assert shown.rpartition("left")[2].strip() == ""  # the last thing is to wipe the line


def test_a_quick_check_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_by(monkeypatch, "stderr", 0.0, Terminal()) == ""


def test_nothing_is_said_into_a_file_or_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    assert shown_by(monkeypatch, "stderr", 0.15, io.StringIO()) == ""


def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "DELAY", 0.0)


def test_a_notebook_shows_it_as_output_and_not_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    in_notebook(monkeypatch)
    assert "2 of 3 cases done" in shown_by(monkeypatch, "stdout", 0.15, io.StringIO())


def test_a_notebook_that_is_run_for_its_outputs_is_without(monkeypatch: pytest.MonkeyPatch) -> None:
    in_notebook(monkeypatch)
    monkeypatch.setenv(HIDDEN, "1")
    assert shown_by(monkeypatch, "stdout", 0.15, io.StringIO()) == ""


@pytest.mark.needs("POSIX")
def test_a_check_in_a_terminal_shows_it() -> None:
    """The whole way, from the command to the terminal."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    code = (
        "from pa_tutorial.checks import progress, check; progress.DELAY = 0\n"
        "check('full_recompute', lambda *_, **__: __import__('time').sleep(0.2), raises=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs) as run:
        os.close(theirs)
        seen = b""
        while b"full_recompute: 1 of 16 cases done" not in seen:
            seen += os.read(ours, 1000)  # raises OSError if the process ends
        run.kill()
    os.close(ours)
