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


def shown_by(monkeypatch: pytest.MonkeyPatch, name: str, file: io.StringIO) -> str:
    """What three cases of 0.1 seconds print into sys.stdout or sys.stderr."""
    monkeypatch.setattr(sys, name, file)
    assert [time.sleep(0.1) or case for case in with_progress("cuda_v1", "abc")] == [*"abc"]
    return file.getvalue()


def test_a_quick_check_says_nothing_and_a_slow_one_nothing_into_a_file_or_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown_by(monkeypatch, "stderr", Terminal()) == ""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    assert shown_by(monkeypatch, "stderr", io.StringIO()) == ""


def test_a_notebook_shows_it_as_output_unless_it_is_run_for_its_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "DELAY", 0.0)
    shown = shown_by(monkeypatch, "stdout", io.StringIO())
    assert "2 of 3 cases done, 00:00 left" in shown
    assert shown.rpartition("left")[2].strip() == ""  # the last thing is to wipe the line
    monkeypatch.setenv(HIDDEN, "1")
    assert shown_by(monkeypatch, "stdout", io.StringIO()) == ""


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
