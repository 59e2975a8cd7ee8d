"""`make lab`: what a reader sees of it. Its set-up is tried with a Python that does nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A pip that is as talkative as the real one.
PIP = 'case "$*" in *pip*-q*) exit $FAILS;; *pip*) seq 300;; esac'


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment without what is asked for, whose JupyterLab is the one that runs the tests."""
    (bin_ := tmp_path / "venv" / "bin").mkdir(parents=True)
    programs = {
        "python": PIP,
        "jupyter": f'case $1 in lab) exec {sys.executable} -m jupyter "$@"; esac',
    }
    programs["id"] = "echo $USER_ID"
    for name, does in programs.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (bin_ / name).chmod(0o755)
    return bin_.parent


def make_lab(venv: Path, *options: str, user: int = 1000, fails: int = 0) -> tuple[int, str]:
    """Its exit status, and what it says until a notebook could be opened."""
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    own = {name: str(venv / name) for name in folders} | {"BROWSER": "true"}
    own |= {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "USER_ID": str(user)}
    own |= {"FAILS": str(fails)}
    # A make inside `make test` would say which folder it enters, and take over that make's options.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}
    around = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", "lab", f"VENV={venv}", f"PYTHON={sys.executable}", *options]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    piped |= {"start_new_session": True}
    with subprocess.Popen(command, cwd=ROOT, env=around | own, **piped) as process:
        said = ""
        for line in process.stdout:
            said += line
            if "127.0.0.1" in line:
                # Asked to end while it still starts, JupyterLab may go on, and make with it.
                os.killpg(process.pid, signal.SIGKILL)
                break
    return process.returncode, said


@pytest.mark.rest
def test_make_lab_says_little_and_where_jupyterlab_is(venv: Path) -> None:
    _, said = make_lab(venv, "ROOT=1")
    assert "token=" in said, said
    assert len(said.splitlines()) <= 10, said
    _, said = make_lab(venv, "ROOT=1")
    assert len(said.splitlines()) <= 10, said


def test_make_lab_tells_root_how_to_go_on_before_it_installs_anything(venv: Path) -> None:
    status, said = make_lab(venv, user=0)
    assert status != 0
    assert "make lab ROOT=1" in said
    assert "Setting up" not in said


def test_make_lab_ends_where_pip_fails(venv: Path) -> None:
    status, said = make_lab(venv, "ROOT=1", fails=1)
    assert status != 0
    assert "Opening" not in said
    assert not (venv / ".lab-ready").exists()
