"""`python -m simt notebook.ipynb`: the cells of a notebook, run by IPython."""

import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simt.helpers import IMPORTS, REVERSE

pytest.importorskip("IPython")

RACE = "race: thread 0 of thread block 0 reads s[63], which thread 63 wrote"
LAUNCH = "reverse[1, 64](a, a + 1)"
Run = Callable[..., SimpleNamespace]


def notebook(*cells: str | tuple[str, str]) -> dict[str, object]:
    """A notebook as JSON; a cell is its text, or its text and a tag."""
    pairs = [(cell, None) if isinstance(cell, str) else cell for cell in cells]
    made = [
        {
            "cell_type": "code",
            "metadata": {"tags": [tag]} if tag else {},
            "source": text.splitlines(keepends=True),
        }
        for text, tag in pairs
    ]
    prose = {"cell_type": "markdown", "metadata": {}, "source": "# 1 / 0"}
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [prose, *made]}


@pytest.fixture
def run(tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a notebook, whose cells are given; what it prints and the exit code."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    for name in ("display", "__IPYTHON__"):  # IPython leaves them there
        monkeypatch.setattr(builtins, name, None, raising=False)

    def run(*cells: str | tuple[str, str], options: tuple[str, ...] = ()) -> SimpleNamespace:
        (tmp_path / "some.ipynb").write_text(json.dumps(notebook(*cells)))
        return command(*options, "some.ipynb")

    return run


@pytest.mark.parametrize("above", ["# a comment", "%%time", "%%capture"])
def test_a_finding_names_its_cell_and_its_lines(above: str, run: Run) -> None:
    done = run(IMPORTS, "   ", f"{above}\n{REVERSE}", LAUNCH)
    assert done.returncode == 1, done.stderr
    assert RACE in done.stdout
    assert "    line 7 of reverse:  out[t] = s[63 - t]\n" in done.stdout
    assert "    in Cell In[2]\n" in done.stdout  # an empty cell isn't counted, as in Jupyter
    assert done.stdout.endswith("some.ipynb: 1 finding\n")


# What the cells may do, and what is printed in one run of all of them
CELLS = {
    "f'{6 * 7} is shown'": "Out[2]: '42 is shown'",
    "6 * 7;": "",
    "files = !echo a; echo b\nfiles": "Out[4]: ['a', 'b']",
    "%%capture taken\nprint('hidden')": "",
    "taken.stdout": "Out[6]: 'hidden\\n'",
    "get_ipython().run_line_magic('pwd', '')": "Out[7]: ",
    "__name__, '__file__' in globals()": "Out[8]: ('__main__', False)",
    "import sys\nsys.argv": "Out[9]: ['some.ipynb']",
    "sys.path[0] == get_ipython().starting_dir": "Out[10]: True",
    "In[2], _2": "Out[11]: (\"f'{6 * 7} is shown'\", '42 is shown')",
    "%%bash\necho from bash": "from bash",
}


@pytest.mark.needs("POSIX")
def test_cells_run_by_ipythons_own_rules(run: Run) -> None:
    done = run(IMPORTS, *CELLS, f"{REVERSE}\n{LAUNCH}")
    assert done.returncode == 1, done.stderr
    for shown in CELLS.values():
        assert shown in done.stdout
    assert "\nhidden" not in done.stdout
    assert not done.stderr


def test_an_error_ends_the_run_and_is_shown_without_our_lines(run: Run) -> None:
    wrong = REVERSE.replace("63 - t", "cuda.foo(t)")
    done = run(IMPORTS, wrong, f"def f():\n    {LAUNCH}\n\nf()", "print('later')")
    assert done.returncode == 2
    assert "  Cell In[3], line 4, in <module>\n    f()\n  Cell In[3], line 2, in f\n" in done.stderr
    assert "does not know cuda.foo\n  Cell In[2], line 6, in reverse:\n" in done.stderr
    assert not re.search("IPython|simt/", done.stderr)
    assert "later" not in done.stdout


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("x = (", "  Cell In[2], line 1\n    x = (\n"),
        ("try:\n    1 / 0\nfinally:\n    a.no_such", "During handling of the above exception"),
        ("import sys\nsys.exit(3)", ""),
    ],
)
def test_the_run_goes_on_after_an_error_that_the_notebook_expects(
    cell: str, shown: str, run: Run
) -> None:
    done = run(IMPORTS, (cell, "raises-exception"), "print('later')", f"{REVERSE}\n{LAUNCH}")
    assert done.returncode == 1
    assert done.stdout.startswith("later\n")
    assert shown in done.stderr


@pytest.mark.usefixtures("interrupts_arrive")
@pytest.mark.parametrize(
    ("cell", "code", "said"),
    [
        ("sys.exit('why')", 1, "why\n"),
        ("quit()", 0, ""),
        ("signal.raise_signal(signal.SIGINT)", 130, "Stopped, outside of kernels\n"),
    ],
)
def test_a_cell_or_ctrl_c_can_end_the_run(cell: str, code: int, said: str, run: Run) -> None:
    fixed = REVERSE.replace("    out", "    cuda.syncthreads()\n    out")
    done = run(f"import signal, sys\n{IMPORTS}", f"{fixed}\n{LAUNCH}", cell, "print('later')")
    assert (done.returncode, done.stderr) == (code, said)
    assert "later" not in done.stdout


def test_a_notebook_may_simulate_by_itself(run: Run) -> None:
    """What it catches is a finding, the trace that it asks for is there, and the order is that of
    the command."""
    simulates = "from simt import simulate\nsimulate(trace='all');"
    caught = f"try:\n    {LAUNCH}\nexcept Exception as error:\n    print(type(error).__name__)"
    later = "with simulate(collect=True, trace=[1]):\n    reverse[2, 64](a, a)"
    shown = "set(reverse.report.trace.records.block.tolist()), reverse.report.order"
    done = run(IMPORTS, simulates, REVERSE, caught, later, shown, options=("--order", "reverse"))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("SimtError\nOut[6]: ({1}, 'reverse')\n")


R = '{"nbformat": 4, "metadata": {"kernelspec": {"language": "R"}}, "cells": []}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it isn't JSON"),
        ('{"nbformat": 3, "worksheets": []}', "nbformat 3"),
        ('{"nbformat": 4, "metadata": {}}', "isn't a notebook of nbformat 4: KeyError"),
        (R, "written in R"),
    ],
)
def test_what_is_no_python_notebook_is_refused_in_a_line(
    text: str, says: str, command: Run, tmp_path: Path
) -> None:
    (tmp_path / "some.ipynb").write_text(text)
    done = command("some.ipynb")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_works_beside_the_notebook_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """As a reader starts it, in a folder beside the notebook's. As in Jupyter, figures need no
    window."""
    there, home = tmp_path / "there", tmp_path / "home"
    there.mkdir()
    home.mkdir()
    plot = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    waits = "import asyncio, beside\nawait asyncio.sleep(0)\nbeside.NAME"
    text = json.dumps(notebook(IMPORTS, waits, "input('who? ')", plot, f"{REVERSE}\n{LAUNCH}"))
    (there / "some.ipynb").write_text(text)
    (there / "beside.py").write_text("NAME = 'beside'\n")
    environment = {n: v for n, v in os.environ.items() if n not in ("MPLBACKEND", "IPYTHONDIR")}
    environment |= {"HOME": str(home), "USERPROFILE": str(home)}
    command = [sys.executable, "-m", "simt", "there/some.ipynb"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, input="me\n", **options)
    assert done.returncode == 1, done.stderr
    for shown in ("Out[2]: 'beside'", "who? Out[3]: 'me'", "<Figure size 640x480 with 1 Axes>"):
        assert shown in done.stdout
    assert (there / "some.ipynb").read_text() == text
    names = {path.name for path in there.iterdir()}
    assert names - {"__pycache__"} == {"some.ipynb", "beside.py"}
    assert not (home / ".ipython").exists()
