"""`python -m simt script.py`: a program that was not written for the simulator."""

import linecache
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simt.helpers import IMPORTS, REVERSE

RACE = f"""
import sys
{IMPORTS}
{REVERSE}
out = cuda.to_device(np.zeros(64, np.float32))
for _ in range(2):
    reverse[int(sys.argv[1]), 64](out, a)
print("sum", out.copy_to_host().sum())
"""
RIGHT = RACE.replace("    out[t]", "    cuda.syncthreads()\n    out[t]")
Run = Callable[..., SimpleNamespace]


@pytest.fixture
def simt(tmp_path: Path, command: Run) -> Run:
    """Run a program; what it prints and the exit code."""

    def run(text: str, *options: str) -> SimpleNamespace:
        (tmp_path / "program.py").write_text(text)
        linecache.checkcache()
        return command(*options)

    return run


def test_a_race_is_reported_with_its_lines_and_costs(simt: Run) -> None:
    done = simt(RACE, "--trace", "reverse", "program.py", "1")
    assert done.returncode == 1
    assert "race: thread 0 of thread block 0 reads s[63]" in done.stdout
    assert "line 11 of reverse:  out[t] = s[63 - t]" in done.stdout
    assert "in program.py" in done.stdout
    assert "Shared memory: reverse" in done.stdout
    assert "reverse: 2 launches" in done.stdout
    assert done.stdout.endswith("program.py: 1 finding\n")
    unchecked = simt(RACE, "--no-check", "program.py", "1")
    assert unchecked.returncode == 0
    assert unchecked.stdout.endswith("program.py: nothing was checked\n")


def test_the_first_finding_is_on_a_page_if_it_can_be_saved(simt: Run, tmp_path: Path) -> None:
    """Whatever folder and output the program has at its end."""
    pytest.importorskip("matplotlib")
    refused = simt(RIGHT, "--html", "nowhere/race.html", "program.py", "1")
    assert (refused.returncode, refused.stdout) == (2, ""), "the program ran"
    elsewhere = "import io, os, sys\nos.chdir('/')\nsys.stdout = io.StringIO()\n"
    done = simt(elsewhere + RACE, "--html", "race.html", "program.py", "1")
    assert done.stdout.endswith("program.py: 1 finding\nrace.html shows the first.\n")
    assert "reverse" in (tmp_path / "race.html").read_text()


@pytest.mark.needs("POSIX")
def test_a_finding_in_a_process_that_the_program_forks_counts(tmp_path: Path) -> None:
    """In a process of its own, because this one had better not fork."""
    fork = "import os\nif os.fork():\n    os.wait()\n    raise SystemExit\n"
    (tmp_path / "program.py").write_text(fork + RACE + "os._exit(0)\n")
    command = [sys.executable, "-m", "simt", "program.py", "300"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith("\nprogram.py: findings in another process\n")
    assert done.stderr.count("race: thread 0 of thread block 0 reads s[63]") == 1


OTHER = """
@cuda.jit
def other(a):
    a[0] = cuda.foo(1)

try:
    other[1, 1](out)
except Exception as error:
    print("caught")
"""


# Each turn's condition is another, so that nothing calls it endless before Ctrl-C comes.
ENDLESS = """
@cuda.jit
def endless(t):
    while t >= 0:
        t = t % 64 + 1

from _thread import interrupt_main
from threading import Timer
Timer(1, interrupt_main).start()
endless[1, 64](0)
"""


@pytest.mark.usefixtures("interrupts_arrive")
@pytest.mark.parametrize(
    ("text", "code", "last", "said"),
    [
        (RIGHT, 0, "program.py: no findings", ""),
        (RIGHT + "sys.exit(7)\n", 7, ": no findings; the program's exit code is 7", ""),
        (RACE + "sys.exit('why')\n", 1, ": 1 finding; the program's exit code is 1", "why"),
        (RACE + "1 / 0\n", 1, ": 1 finding; the program ended with an error", "ZeroDivisionError"),
        (RIGHT + "os.foo\n", 2, ": the program ended with an error", "NameError: name 'os' is not"),
        (RIGHT + OTHER, 2, ": other could not run", ""),
        (
            RIGHT.replace("63 - t", "cuda.eval(t)"),
            *(2, ": reverse could not run", "does not know cuda.eval\n  program.py, line 12"),
        ),
        (RIGHT + ENDLESS, 130, "sum 2016.0", "in endless:"),
        ("print('hello')", 2, "hello", "program.py launched no kernel."),
        ("x = (", 2, "", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_finding_decides_the_exit_code_then_what_could_not_run_then_the_program(
    text: str, code: int, last: str, said: str, simt: Run
) -> None:
    """An error is shown without our lines, and Ctrl-C with the line that was running."""
    done = simt(text, "program.py", "1")
    assert done.returncode == code
    assert done.stdout.rstrip("\n").endswith(last)
    assert said in done.stderr
    assert "simt/" not in done.stderr
    assert ("caught" in done.stdout) == ("caught" in text)


def test_a_script_or_a_kernel_that_does_not_exist_is_named(simt: Run) -> None:
    done = simt(RIGHT, "nothing.py")
    assert done.returncode == 2
    assert "nothing.py: No such file" in done.stderr
    done = simt(RIGHT, "--trace", "sums", "program.py", "1")
    assert done.returncode == 2
    assert "sums: the kernels are reverse" in done.stderr


TYPED = """
import numpy as np
from numba_cuda_mlir import cuda
from numba_cuda_mlir.types import Tuple, float32, float64, int32, void

@cuda.jit(void(float64[:, ::1], int32, Tuple((int32, float32))))
def one(a, n, pair):
    a[0, 0], a[0, 1] = n, pair[0] + pair[1]

a = np.zeros((1, 2))
one[1, 1](a, 2, (3, 0.1))
print(a.tolist())
"""


@pytest.mark.skipif(not find_spec("numba_cuda_mlir"), reason="numba-cuda-mlir isn't installed")
def test_the_successor_of_numba_cuda_runs_too_with_its_type_objects(simt: Run) -> None:
    done = simt(TYPED, "program.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[2.0, 3.100000001490116]]\n")
