"""Names that other libraries don't promise to keep still exist; a package has them in one file."""

import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from pa_tutorial import private_names
from simt import private_names as of_simt
from tests import absent

NEEDS = {"triton.": "Triton", "numba.cuda.": "numba-cuda", "cuda.": "numba-cuda"}
LIBRARY = r"(?:torch|dist|numba|cuda|dispatcher|triton|tl|interpreter)"
PRIVATE = re.compile(rf"(?:from|import) [\w.]*\._\w+|\b{LIBRARY}\.(?:\w+\.)*_[a-z]\w*")


@pytest.mark.parametrize("ours", [private_names, of_simt], ids=["pa_tutorial", "simt"])
def test_only_one_file_uses_private_names(ours: ModuleType) -> None:
    here = Path(ours.__file__)
    texts = {file: file.read_text(encoding="utf-8") for file in here.parent.rglob("*.py")}
    assert {file for file, text in texts.items() if PRIVATE.search(text)} <= {here}


@pytest.mark.parametrize(
    ("ours", "name"), [(ours, name) for ours in (private_names, of_simt) for name in ours.PLACE]
)
def test_a_private_name_still_exists(ours: ModuleType, name: str) -> None:
    place = ours.PLACE[name]
    for library, what in NEEDS.items():
        if place.startswith(library):
            absent.require(what)
    if place == "torch._dynamo":  # importing it takes seconds
        assert find_spec(place)
    else:
        getattr(ours, name)
