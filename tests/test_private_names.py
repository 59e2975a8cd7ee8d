"""The names that other libraries don't promise to keep still exist, and one file has them all."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pa_tutorial import private_names
from tests import absent

NEEDS = {"triton.": "Triton", "numba.cuda.": "numba-cuda", "cuda.": "numba-cuda"}
LIBRARY = r"(?:torch|dist|numba|cuda|dispatcher|triton|tl|interpreter)"
PRIVATE = re.compile(rf"(?:from|import) [\w.]*\._\w+|\b{LIBRARY}\.(?:\w+\.)*_[a-z]\w*")


@pytest.mark.parametrize(("name", "place"), private_names.PLACE.items())
def test_a_private_name_still_exists(name: str, place: str) -> None:
    for library, what in NEEDS.items():
        if place.startswith(library):
            absent.require(what)
    if place == "torch._dynamo":  # importing it takes seconds
        assert find_spec(place)
    else:
        getattr(private_names, name)


def test_only_one_file_uses_private_names() -> None:
    here = Path(private_names.__file__)
    texts = {file: file.read_text(encoding="utf-8") for file in here.parent.rglob("*.py")}
    assert [file for file, text in texts.items() if PRIVATE.search(text)] == [here]
