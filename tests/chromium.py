"""The system's Chromium, for tests of pages: found, or installed where CI runs the tests."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import absent
from filelock import FileLock

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LOCK = Path(tempfile.gettempdir()) / "pa_tutorial_chromium.lock"
WAIT = "DPkg::Lock::Timeout=120"  # seconds: somebody else may be installing
LIMIT = 300  # seconds for each command


def chromium() -> str:
    """Path of a Chromium. Skips the test, with the reason, where there is none and none can be
    installed."""
    found = find_chromium()
    if found is None:
        as_root = rights_to_install()
        with FileLock(LOCK):  # the tests may run in several processes
            found = find_chromium() or install(as_root)
    return found


def find_chromium() -> str | None:
    """The first that runs. (Ubuntu has a script of this name that only asks for a snap.)"""
    paths = filter(None, map(shutil.which, NAMES))
    return next((path for path in paths if not why_failed([path, "--version"])), None)


def rights_to_install() -> list[str]:
    """What must stand before apt-get."""
    if not os.environ.get("CI"):  # on a reader's machine, tests install nothing
        skip("install one, or let the tests do it as root: CI=1")
    if not shutil.which("apt-get"):
        skip("there is no apt-get to install it with")
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if not shutil.which("sudo") or why_failed([*sudo, "true"]):
        skip("only root may install it: apt-get install chromium")
    return sudo


def install(as_root: list[str]) -> str:
    apt = [*as_root, "apt-get", "-q", "-o", WAIT]
    for command in ("update",), ("install", "-y", "--no-install-recommends", "chromium"):
        why = why_failed([*apt, *command])
        if why:
            skip(f"apt-get {command[0]} failed: {why}")
    return find_chromium() or skip("apt-get installed chromium, and it does not run")


def why_failed(command: list[str]) -> str:
    """The last line that it printed; empty: it did not fail."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    try:
        ran = subprocess.run(command, **piped, timeout=LIMIT, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT} s"
    lines = ran.stdout.splitlines() or ["no message"]
    return lines[-1] if ran.returncode else ""


def skip(why: str) -> NoReturn:
    absent.skip("Chromium", f"none is found; {why}")
