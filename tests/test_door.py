"""A door opens one room: what `check` imports. And every room is within its limit."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.house_size import TOO_LARGE, lines_of_code, rows

LOADED = """
import json, sys
print(json.dumps({name: getattr(m, "__file__", None) for name, m in sys.modules.items()}))
"""
CHECKS = "from pa_tutorial.checks import check"
FAR = ("numba", "triton", "transformers", "matplotlib", "simt")
FAR += tuple(f"pa_tutorial.{r}" for r in ("kernels", "engine", "distributed", "viz", "exercises"))
FAR += ("pa_tutorial.bench", "pa_tutorial.coursework")
MOVED = {
    "pa_tutorial.simt": "simt",
    "pa_tutorial.simt.host": "simt",
    "pa_tutorial.ptx": "simt.ptx",
    "pa_tutorial.ptx.original": "pa_tutorial.bench.original",
    "pa_tutorial.viz.microscope": "simt.microscope",
    "pa_tutorial.walk.ladder": "pa_tutorial.checks",
    "pa_tutorial.backends": "pa_tutorial.attention.backend",
}


def loaded_by(program: str) -> Mapping[str, str | None]:
    """Module -> its file, after a program."""
    command = [sys.executable, "-c", program + LOADED]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    return json.loads(said.splitlines()[-1])


def size(loaded: Mapping[str, str | None], packages: Iterable[str]) -> int:
    """Lines of code of the modules of these packages."""
    files = [file for name, file in loaded.items() if name.partition(".")[0] in packages]
    return sum(
        lines_of_code(Path(file).read_text(encoding="utf-8")) for file in filter(None, files)
    )


def test_everything_is_within_a_tenth_of_its_limit() -> None:
    assert not [one for one in rows() if TOO_LARGE in one]


@pytest.mark.parametrize("program", [CHECKS, f'{CHECKS}\ncheck("kv_cache")'])
def test_check_imports_only_the_rooms_that_it_needs(program: str) -> None:
    """A reader of notebook 01 doesn't wait for what notebook 01 doesn't need."""
    loaded = loaded_by(program)
    assert not set(FAR) & loaded.keys()
    assert size(loaded, {"pa_tutorial", "simt"}) < 4000


def test_the_simulator_imports_nothing_of_the_walk_and_no_torch() -> None:
    loaded = loaded_by("import simt, simt.ptx, simt.__main__")
    assert not {"pa_tutorial", "torch", "matplotlib", "IPython"} & loaded.keys()


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_import_names_the_new_place(old: str, new: str) -> None:
    command = [sys.executable, "-c", f"import {old}"]
    said = subprocess.run(command, capture_output=True, encoding="utf-8").stderr.splitlines()
    assert said[-1].startswith("ImportError: ")
    assert f" {new}" in said[-1]
