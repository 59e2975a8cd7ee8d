"""Programs as people write them for numba.cuda: in the simulator, its last warp first, and as PTX.

Those in programs/ know nothing of this, and check with NumPy what they compute. A faulty one has
a comment such as `# FAULT race` at the line that each of the three ways must name.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simt.__main__ import program
from simt.host import simulated
from simt.ptx import run_ptx

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.*"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PROGRAMS}
# These have what the kernels of test_simt_kernels.py don't.
QUICK = {"dot_half", "histogram_not_zeroed", "histogram_racing", "last_block", "match_any"}
QUICK |= {"moving_sum", "scans", "spin_lock", "ufunc"}
WAYS = {"simt": {}, "reverse": {"order": "reverse"}, "ptx": {"launcher": run_ptx}}
each_way = pytest.mark.parametrize(
    "way", ["simt", "reverse", pytest.param("ptx", marks=pytest.mark.needs("numba-cuda"))]
)
UNSUPPORTED = {  # what a way says to a program that needs what it doesn't support
    ("ptx", "grid_sync.py"): "no such function: call.uni (retval0), cudaCGGet",
}
puts_back_what_programs_replace = pytest.mark.usefixtures("command")


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name.partition(".")[0] in QUICK else [pytest.mark.rest("test_simt_kernels.py")]


def run(way: str, path: Path) -> int | None:
    with simulated(**WAYS[way]):
        return program(str(path), ())()


@each_way
@puts_back_what_programs_replace
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name, marks=marks(path.name)) for path in PROGRAMS]
)
def test_a_program_is_right_or_its_fault_is_named(
    way: str, path: Path, capsys: pytest.CaptureFixture
) -> None:
    if path.suffix == ".ipynb":
        pytest.importorskip("IPython")
    status, said = run(way, path), capsys.readouterr().err
    text = TEXTS[path.name]
    if fault := re.search(r"# FAULT (\w+)", text):
        line = 1 + text[: fault.start()].count("\n")
        assert re.search(rf"{fault[1]}: thread(.|\n)* line {line} of ", said), said
    elif words := UNSUPPORTED.get((way, path.name)):
        assert words in said, said
    else:
        assert (status, said) == (0, "")


def without_one() -> Iterator[object]:
    """The texts of the right programs, each without a barrier, or with no fence or a weaker one."""
    weaker = {"syncthreads": ("pass",), "threadfence": ("pass", "cuda.threadfence_block()")}
    for name, text in TEXTS.items():
        for found in re.finditer(r"cuda\.(syncthreads|threadfence)\(\)", text):
            for other in weaker[found[1]] if "# FAULT" not in text else ():
                line = text[: found.start()].count("\n") + 1
                changed = text[: found.start()] + other + text[found.end() :]
                yield pytest.param(changed, id=f"{name}-{line}-{other}", marks=marks(name))


@each_way
@puts_back_what_programs_replace
@pytest.mark.parametrize("text", list(without_one()))
def test_a_program_needs_each_of_its_barriers_and_fences(
    way: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "program.py"
    path.write_text(text, encoding="utf-8")
    assert run(way, path) is None
    assert re.search("(race|init): thread", capsys.readouterr().err)
