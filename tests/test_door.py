"""A door opens one room: what `check` imports. And every room is within its limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house_size import TOO_LARGE, lines_of_code, rows

PROGRAM = """
import json, sys
from pa_tutorial.checks import check
check("kv_cache")
print(json.dumps({name: getattr(m, "__file__", None) for name, m in sys.modules.items()}))
"""
FAR_ROOMS = ("simt", "ptx", "kernels", "engine", "exercises", "viz", "bench")
FAR = {"numba", "triton", "transformers", "matplotlib", *(f"pa_tutorial.{r}" for r in FAR_ROOMS)}


def test_everything_is_within_a_tenth_of_its_limit() -> None:
    assert not [one for one in rows() if TOO_LARGE in one]


@pytest.mark.rest
def test_check_imports_only_the_rooms_that_it_needs() -> None:
    """A reader of notebook 01 doesn't wait for what notebook 01 doesn't need."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True).stdout
    loaded = json.loads(said.splitlines()[-1])
    assert not FAR & loaded.keys()
    ours = [file for name, file in loaded.items() if name.startswith("pa_tutorial")]
    assert sum(lines_of_code(Path(file).read_text(encoding="utf-8")) for file in ours) < 2700
