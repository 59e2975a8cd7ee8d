"""What a reader has on a Mac after `make lab`: no numba-cuda, no cuda-*, no Triton, no test tools.

Numba's own `numba.cuda` is another program than numba-cuda: its warp functions, for example, are
Python functions. On Linux the packages that pip chooses for a Mac are linked into an environment of
their own; on a Mac they are those that are here.
"""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.packages import MAC, chosen, link_packages

ROOT = Path(__file__).parent.parent
# What runs on a Mac: everything marked `macos`, and a stage as the README says it.
SELECTED = "macos or kv_cache"
NOT_HERE = ("Triton", "hypothesis", "Sphinx")  # whole files need them, none of them SELECTED
# A link needs a right on Windows, and the environment of a Mac is laid out as on Linux.
pytestmark = pytest.mark.needs("POSIX")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment as `make lab` makes it on a Mac."""
    if sys.platform == "darwin":
        return sys.executable
    folder = tmp_path_factory.mktemp("macos")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    link_packages(chosen("pa-tutorial[lab,triton]", MAC) - {"pa-tutorial"}, site)
    (site / "pa_tutorial.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return str(folder / "bin" / "python")


def run(*command: str) -> str:
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, **piped, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_no_compiler_for_a_gpu_is_in_the_environment(python: str) -> None:
    program = (
        "from importlib.util import find_spec as f; from numba import cuda; "
        "print([n for n in ('numba_cuda', 'cuda', 'triton', 'hypothesis') if f(n)])"
    )
    assert run(python, "-c", program) == "[]\n"


def test_kernels_warp_functions_notebooks_and_a_stage_run(python: str) -> None:
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SELECTED)
    assert " passed" in said.splitlines()[-1]
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert all(any(name in line for name in NOT_HERE) for line in skipped), skipped
