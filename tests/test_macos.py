"""A reader's packages on a Mac: no numba-cuda, no cuda-*, no Triton, no test tools.

Numba's own `numba.cuda` is a different program from numba-cuda: its warp functions, for example,
are Python functions. On Linux, the packages that pip chooses for a Mac are linked into an
environment; on a Mac they are those that are installed.
"""

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from tests.packages import MAC, chosen

ROOT = Path(__file__).parent.parent
FILES = ("tests/test_notebooks.py", "tests/checks", "tests/simt/test_simt_kernels.py")
SELECTED = ("-m", "macos or kv_cache", *FILES)
# A link needs a right on Windows, and the environment of a Mac is laid out as on Linux.
pytestmark = [
    pytest.mark.needs("POSIX"),
    pytest.mark.rest("test_notebooks.py and test_ladder.py, with the packages of this machine"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment like the one that `make lab` makes on a Mac."""
    if sys.platform == "darwin":
        return sys.executable
    folder = tmp_path_factory.mktemp("macos")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in chosen("pa-tutorial[lab,triton]", MAC) - {"pa-tutorial"}:
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            (site / top).unlink(missing_ok=True)
            (site / top).symlink_to(package.locate_file(top))
    (site / "pa_tutorial.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return str(folder / "bin" / "python")


def run(*command: str) -> str:
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, **piped, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_environment_has_no_compiler_for_gpus(python: str) -> None:
    program = "from importlib.util import find_spec as f; print(f('numba_cuda'), f('triton'))"
    assert run(python, "-c", program) == "None None\n"


def test_kernels_two_notebooks_and_a_stage_run(python: str) -> None:
    """What is marked `macos` needs nothing that a Mac lacks, so none of it is skipped."""
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTED)
    summary = said.splitlines()[-1]
    assert " passed" in summary
    assert "skipped" not in summary
