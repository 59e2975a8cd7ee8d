"""Each distribution in an environment that has nothing else. CI runs this; pip needs the network.

    python -m tests.packages_alone              both: minutes, and 3 GB on Linux
    python -m tests.packages_alone numba-simt   the simulator alone

It builds a wheel from what git tracks, installs it with what it needs, and tries it there. The
Python that runs this may be an empty one, too.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from pa_tutorial.printing import print_anything

ROOT = Path(__file__).parent.parent
FOLDERS = {"numba-simt": "simt", "pa-tutorial": "."}  # distribution -> where its pyproject.toml is
ABSENT = """
import sys
from importlib.util import find_spec
sys.exit([name for name in ("torch", "matplotlib", "IPython", "pytest") if find_spec(name)] or 0)
"""


class Environment:
    """An environment with one distribution, in a folder that has nothing of ours but tests/simt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=True)
        self.python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(self, *arguments: object, expect: int = 0) -> str:
        """What `python arguments` prints; it is shown, too. Exits if its exit code is another."""
        command = [str(self.python), *map(str, arguments)]
        print("$ python", *arguments, flush=True)
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
        done = subprocess.run(command, cwd=self.folder, env=self.variables, **piped)
        print(done.stdout, flush=True)
        if done.returncode != expect:
            sys.exit(f"exit code {done.returncode}; expected was {expect}")
        return done.stdout

    def install(self, requirement: object) -> None:
        self.run("-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", requirement)


def try_numba_simt(there: Environment, wheel: Path, copy: Path) -> None:
    """The example, then the tests that need no more than pytest, then those of pictures and
    notebooks."""
    there.run("-c", ABSENT)
    found = there.run("-m", "simt", copy / "simt/examples/histogram.py", "--bins", 16, expect=1)
    if "race: thread 0 of thread block 0 writes local[8]" not in found:
        sys.exit("the race of the example wasn't found")
    shutil.copytree(copy / "tests" / "simt", there.folder / "tests" / "simt")
    there.install(f"{wheel}[pytest]")
    if "simulated_cuda" not in there.run("-m", "pytest", "--markers"):
        sys.exit("pytest doesn't find the plug-in")
    there.run("-m", "pytest", "-q", "-rs", "tests/simt")
    there.install(f"{wheel}[notebooks]")
    more = "tests/simt/microscope", "tests/simt/test_simt_notebooks.py"
    there.run("-m", "pytest", "-q", "-rs", *more)


def main(names: list[str]) -> None:
    with TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        git = ["git", "checkout-index", "--all", f"--prefix={copy}/"]
        subprocess.run(git, cwd=ROOT, check=True)
        for name in names:
            there = Environment(Path(folder, name))
            build = "-m", "pip", "wheel", "-q", "--no-deps", "-w", there.folder
            there.run(*build, copy / FOLDERS[name])
            (wheel,) = there.folder.glob("*.whl")
            there.install(wheel)
            if name == "numba-simt":
                try_numba_simt(there, wheel, copy)
            else:
                for stage in ("kv_cache", "cuda_v1"):
                    there.run("-m", "pa_tutorial.checks", stage, "--short")
    print("Each works alone:", *names)


if __name__ == "__main__":
    print_anything()
    main(sys.argv[1:] or [*FOLDERS])
