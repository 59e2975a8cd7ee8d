"""What holds on Windows, as far as Linux can tell."""

import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAIN = 'if __name__ == "__main__":'
MAINS = [
    file.relative_to(ROOT)
    for folder in ("pa_tutorial", "tests")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if MAIN in file.read_text(encoding="utf-8").splitlines()
]
FOREIGN = Path("simt/examples/histogram.py")  # knows nothing of us
# Other packages may use these names, so they are imported before the names are removed.
WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys
import matplotlib.pyplot, nbclient, torch._dynamo
from transformers import LlamaForCausalLM, Qwen2ForCausalLM
import pa_tutorial
import simt

for name in ("fork", "setsid", "killpg", "getpgid", "sysconf", "sched_getaffinity", "getloadavg"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGALRM", "SIGUSR1", "pthread_kill", "setitimer"):
    vars(signal).pop(name, None)
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "triton"))
moved = {f"pa_tutorial.{name}" for name in ("backends", "ptx", "simt", "viz.microscope", "walk")}
modules = [*pkgutil.walk_packages(pa_tutorial.__path__, "pa_tutorial.")]
modules += pkgutil.walk_packages(simt.__path__, "simt.")
for name in sorted({module.name for module in modules} - moved):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name.startswith("triton") and ".triton." in name):
            raise
"""


@pytest.mark.rest("nothing: the jobs for macOS and Windows")
def test_every_module_can_be_imported_without_posix_and_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_POSIX], cwd=ROOT, check=True)


class NotUtf8(io.TextIOWrapper):
    """Standard output as on Windows with `> file`. It ends a command that makes it lenient."""

    def reconfigure(self, errors: str) -> None:
        raise SystemExit(errors)

    def write(self, text: str) -> int:
        raise AssertionError(f"printed before any character could be: {text}")


@pytest.mark.parametrize("file", [file for file in MAINS if file != FOREIGN], ids=str)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_every_command_first_makes_its_output_take_any_character(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(file), "--help"])
    monkeypatch.setattr(sys, "stdout", NotUtf8(io.BytesIO(), encoding="cp1252"))
    with pytest.raises(SystemExit, match="backslashreplace"):
        runpy.run_module(".".join(file.with_suffix("").parts), run_name="__main__")


def test_a_program_s_characters_that_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    script = tmp_path / "arrow.py"
    script.write_text("print('a \u2192 b')\n", encoding="utf-8")
    command = [sys.executable, "-m", "simt", str(script)]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.stdout == "a \\u2192 b\n"
    assert "Traceback" not in found.stderr
