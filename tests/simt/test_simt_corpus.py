"""Programs as people write them for numba.cuda: in the simulator, its last warp first, and as PTX.

Those in programs/ know nothing of this, and check with NumPy what they compute. A faulty one has
the comment `# FAULT` at the line that each of the three ways must name.
"""

import builtins
import re
import sys
from collections.abc import Callable, Iterator
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
UNSUPPORTED = {  # what a way says to a program that needs what it doesn't support
    ("ptx", "grid_sync.py"): "the text has no such function: call.uni (retval0), cudaCGGet",
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


WAYS = {"simt": {}, "reverse": {"order": "reverse"}, "ptx": {"launcher": in_ptx}}
each_way = pytest.mark.parametrize(
    "way", ["simt", "reverse", pytest.param("ptx", marks=pytest.mark.needs("numba-cuda"))]
)


def run(way: str, path: Path) -> int | None:
    with simulated(**WAYS[way]):
        return program(str(path), ())()


@each_way
@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_a_program_is_right_or_its_fault_is_named(
    way: str, path: Path, capsys: pytest.CaptureFixture
) -> None:
    if path.suffix == ".ipynb":
        pytest.importorskip("IPython")
    status, said = run(way, path), capsys.readouterr().err
    text = path.read_text(encoding="utf-8")
    assert ("# FAULT" in text) == (path.name in FAULTS)
    if path.name in FAULTS:
        line = 1 + text[: text.index("# FAULT")].count("\n")
        assert re.search(rf"{FAULTS[path.name]}: thread(.|\n)* line {line} of ", said), said
    elif words := UNSUPPORTED.get((way, path.name)):
        assert words in said, said
    else:
        assert (status, said) == (0, "")


def without_one() -> Iterator[object]:
    """The texts of the right programs, each without one of its barriers or fences."""
    for path in PROGRAMS:
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"cuda\.(syncthreads|threadfence)\(\)", text):
            if path.name not in FAULTS:
                line = text[: found.start()].count("\n") + 1
                rest = f"{text[: found.start()]}pass{text[found.end() :]}"
                yield pytest.param(rest, id=f"{path.stem}-{line}")


@each_way
@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("text", list(without_one()))
def test_a_program_needs_each_of_its_barriers_and_fences(
    way: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "program.py"
    path.write_text(text, encoding="utf-8")
    assert run(way, path) is None
    assert re.search("(race|init): thread", capsys.readouterr().err)
