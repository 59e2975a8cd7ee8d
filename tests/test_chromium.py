"""Where Chromium comes from: the system, apt-get, or nowhere, and then the tests say why."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chromium
import pytest

# An apt-get that takes its time, notes what it was asked for, and installs a Chromium that runs.
APT_GET = """
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
with open(here / "asked", "a") as asked:
    print(*sys.argv[1:], file=asked)
if "install" in sys.argv:
    time.sleep(0.2)
    (here / "chromium").write_text("#!/bin/sh\\nexit 0\\n")
    (here / "chromium").chmod(0o755)
"""
NO_NETWORK = "import sys; print('E: Unable to locate package'); sys.exit(100)"

Put = Callable[[str, str], Path]
pytestmark = pytest.mark.needs("POSIX")  # its programs begin with #!


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts programs on the PATH, on which there is nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "LOCK", tmp_path / "lock")
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def put(name: str, python: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{python}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return put


def why_skipped() -> str:
    with pytest.raises(pytest.skip.Exception) as skipped:
        chromium.chromium()
    return str(skipped.value)


@pytest.mark.parametrize("name", chromium.NAMES)
def test_every_name_is_looked_for(put: Put, name: str) -> None:
    path = put(name, "")
    assert chromium.chromium() == str(path)


def test_a_stub_that_does_not_run_is_passed_over(put: Put) -> None:
    put("chromium", "import sys; sys.exit(1)")
    path = put("google-chrome", "")
    assert chromium.chromium() == str(path)


def test_without_apt_get_the_test_is_skipped(put: Put) -> None:
    assert why_skipped().endswith("; there is no apt-get to install it with")


def test_on_a_readers_machine_nothing_is_installed(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = put("apt-get", APT_GET).with_name("asked")
    monkeypatch.delenv("CI")
    assert why_skipped().startswith("needs Chromium: none is found; install one")
    assert not asked.exists()


@pytest.mark.parametrize("sudo", [None, "import sys; sys.exit(1)"], ids=["no sudo", "a password"])
def test_without_the_right_to_install_the_test_is_skipped(
    put: Put, monkeypatch: pytest.MonkeyPatch, sudo: str | None
) -> None:
    put("apt-get", APT_GET)
    if sudo:
        put("sudo", sudo)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root may install it" in why_skipped()


def test_sudo_without_a_password_installs(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = put("apt-get", APT_GET).with_name("asked")
    run = "os.execvp(sys.argv[2], sys.argv[2:])"
    put("sudo", f"import os, sys; sys.argv[1] == '-n' or sys.exit(1); {run}")
    put("true", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    chromium.chromium()
    assert "install -y" in asked.read_text(encoding="utf-8")


def test_a_failed_install_is_the_reason(put: Put) -> None:
    put("apt-get", NO_NETWORK)
    assert why_skipped().endswith("apt-get update failed: E: Unable to locate package")


def test_an_install_that_hangs_is_the_reason(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("apt-get", "import time; time.sleep(60)")
    monkeypatch.setattr(chromium, "LIMIT", 0.2)
    assert "it took more than 0.2 s" in why_skipped()


def test_two_at_once_install_once(put: Put) -> None:
    asked = put("apt-get", APT_GET).with_name("asked")
    with ThreadPoolExecutor(2) as pool:
        paths = [future.result() for future in [pool.submit(chromium.chromium) for _ in range(2)]]
    assert paths == [str(asked.with_name("chromium"))] * 2
    assert [line.split()[3] for line in asked.read_text(encoding="utf-8").splitlines()] == [
        "update",
        "install",
    ]
