"""Programs as people write them for numba.cuda, in both engines.

Those in programs/ know nothing of us, and check with NumPy what they compute. A faulty one has the
comment `# FAULT` at the line that both engines must name.
"""

import builtins
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simt.__main__ import program
from simt.host import simulated
from simt.ptx import PtxReport, run_ptx

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.*"))
FAULTS = {
    "histogram_not_zeroed.py": "init",
    "histogram_racing.py": "race",
    "last_block_without_fence.py": "race",
    "moving_sum.py": "memory",
    "n_body.py": "race",
}
# What an engine can't do, and what it says to a program that asks for it.
UNSUPPORTED = {
    "simt": {"mandelbrot.ipynb": "the simulator does not know complex"},
    "ptx": {"grid_sync.py": "the text has no such function: call.uni (retval0), cudaCGGet"},
}


def in_ptx(kernel: Callable, *launch: object, shared_bytes: int) -> PtxReport:
    return run_ptx(kernel, *launch, shared_bytes=shared_bytes)


@pytest.fixture
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what programs and IPython replace."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MPLBACKEND", "agg")
    for name in ("display", "__IPYTHON__"):
        monkeypatch.setattr(builtins, name, None, raising=False)


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("engine", "launcher"),
    [
        ("simt", None),
        pytest.param("ptx", in_ptx, marks=pytest.mark.needs("numba-cuda")),
    ],
    ids=["simt", "ptx"],
)
def test_a_program_is_right_or_its_fault_is_named(
    engine: str, launcher: Callable | None, path: Path, capsys: pytest.CaptureFixture
) -> None:
    if path.suffix == ".ipynb":
        pytest.importorskip("IPython")
    with simulated(launcher=launcher):
        status = program(str(path), ())()
    said = capsys.readouterr().err
    text = path.read_text(encoding="utf-8")
    assert ("# FAULT" in text) == (path.name in FAULTS)
    if path.name in FAULTS:
        line = 1 + text[: text.index("# FAULT")].count("\n")
        assert re.search(rf"{FAULTS[path.name]}: thread(.|\n)* line {line} of ", said), said
    elif path.name in UNSUPPORTED[engine]:
        assert UNSUPPORTED[engine][path.name] in said, said
    else:
        assert (status, said) == (0, "")
