"""What holds on Windows and macOS too, as far as Linux can tell."""

import ast
import io
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import reload
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pa_tutorial
from pa_tutorial.distributed import group, ranks
from tests.same_output import Piece, require_same

ROOT = Path(__file__).parent.parent


def test_line_ends_stay_where_git_is_told_to_change_them(tmp_path: Path) -> None:
    """As Git for Windows is set up. What is compared byte for byte, and our shell scripts."""
    git = ["git", "-C", str(ROOT), "-c", "core.autocrlf=true"]
    files = ["figures/map.svg", ".ci/run"]
    done = subprocess.run([*git, "checkout-index", f"--prefix={tmp_path}/", *files], check=False)
    if done.returncode:
        pytest.skip("this is no clone")
    assert not [file for file in files if b"\r" in (tmp_path / file).read_bytes()]


# What others import stays theirs: the names are taken away afterwards.
ON_WINDOWS = """
import importlib, os, pathlib, pkgutil, signal, sys
import matplotlib.pyplot, nbclient, pytest, torch._dynamo
from transformers import LlamaForCausalLM, Qwen2ForCausalLM
import pa_tutorial

for name in ("fork", "setsid", "killpg", "getpgid", "sysconf", "sched_getaffinity", "getloadavg"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGALRM", "SIGUSR1", "pthread_kill", "setitimer"):
    vars(signal).pop(name, None)
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "triton"))
ours = [module.name for module in pkgutil.walk_packages(pa_tutorial.__path__, "pa_tutorial.")]
tests = [".".join(path.with_suffix("").parts) for path in pathlib.Path("tests").rglob("*.py")]
for name in [*ours, *tests]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name.startswith("triton") and ".triton_" in name):
            raise
files = ["tests/test_macos.py", "tests/kernels/test_triton_decode.py"]
pytest.main(["-q", "-rs", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", *files])
"""


def test_without_posix_and_triton_all_is_imported_and_the_skipped_are_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_WINDOWS],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert not re.search("passed|failed|error", said), said
    for what in ("Triton", "POSIX"):
        skipped = re.findall(rf"^SKIPPED \[(\d+)\] .*: needs {what}: ", said, re.M)
        assert skipped
        assert f"{what} ({sum(map(int, skipped))} tests skipped)" in said


def picture(*shades: int) -> bytes:
    """1,000 white pixels in a row, but for the first."""
    row = np.uint8([[*shades, *[255] * (1000 - len(shades))]])
    Image.fromarray(row).save(file := io.BytesIO(), "png")
    return file.getvalue()


@pytest.mark.parametrize(
    ("new", "old", "is_close"),
    [
        ("error 1.24e-07 of 3 steps, 10.00", "error 1.23e-07 of 3 steps,  9.99", True),
        ("error 1.26e-07 of 3 steps", "error 1.23e-07 of 3 steps", False),
        ("4 blocks", "5 blocks", False),
        ("0.25 of K", "0.25 of V", False),
        ('<use x="7.500001" href="#p0d9a43716d"/>', '<use x="7.5" href="#p24cf338c49"/>', True),
        (picture(0, 255), picture(10, 245), True),
        (picture(0, 255), picture(0, 0, 0), False),
        ("one", None, False),
    ],
    ids=["digit", "digits", "count", "word", "svg", "shade", "pixels", "missing"],
)
def test_outputs_may_differ_in_the_last_digit_and_by_a_shade_elsewhere(
    new: Piece, old: Piece | None, is_close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = []
    for system, same in (("Linux", False), ("Darwin", is_close)):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        with nullcontext() if same else pytest.raises(AssertionError, match="not what is"):
            require_same([new], [old], "here", lambda *note: noted.append(note))
    assert noted == [("rounded", "here")] * is_close


@pytest.mark.needs("POSIX")
@pytest.mark.parametrize(
    ("system", "start", "interface"),
    [("linux", "forkserver", None), ("darwin", "spawn", "lo0"), ("win32", "spawn", None)],
)
def test_what_a_system_cannot_do_is_not_asked_of_it(system, start, interface, monkeypatch) -> None:
    """Forks of a process that has imported torch; the name of a Mac."""
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.setattr(group.os, "environ", environment)
    monkeypatch.setattr(sys, "platform", system)
    assert ranks._context().get_start_method() == start
    group.stay_on_this_mac()
    assert environment.get("GLOO_SOCKET_IFNAME") == interface


def test_a_processor_without_bfloat16_is_no_defect() -> None:
    """torch takes another way to multiply, and says so: a reader need not know."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        reload(pa_tutorial)
        warnings.warn("mkldnn_matmul bf16 path needs a cpu with bf16 support", stacklevel=1)
    assert not seen


def test_every_text_is_read_and_written_as_utf_8() -> None:
    """Windows takes another encoding where none is named."""
    files = [path for folder in ("pa_tutorial", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert not [place for path in files for place in without_encoding(path)]


def without_encoding(path: Path) -> Iterator[str]:
    """Where a file or a pipe is opened as text, and nobody says in which encoding."""
    source = path.read_text(encoding="utf-8")
    if not re.search(r"open\(|(read|write)_text\(|\btext\b.{1,3}True", source):
        return  # without the seconds that the syntax trees of all files take
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        name = ast.unparse(call.func)
        mode = ast.unparse(call.args[-1]) if len(call.args) > (name == "open") else "'r'"
        opens = re.search(r"(^|\.)open$", name) and re.fullmatch(r"'[rwax]t?\+?'", mode)
        texts = name.endswith((".read_text", ".write_text")) or options.get("text") == "True"
        if (opens or texts) and "encoding" not in options:
            yield f"{path.relative_to(ROOT)}:{call.lineno}"
