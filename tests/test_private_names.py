"""What other libraries never promised us is still there, and all of it stands in one file."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pa_tutorial import private_names
from pa_tutorial.private_names import BREAKS, PLACE
from tests import absent

NEEDS = {"triton.": "Triton", "numba.cuda.": "numba-cuda", "cuda.": "numba-cuda"}
PACKAGE = Path(private_names.__file__).parent
LIBRARY = r"(?:torch|dist|numba|cuda|dispatcher|triton|tl|interpreter)"
UNDERSCORED = re.compile(rf"(?:from|import) [\w.]*\._\w+|\b{LIBRARY}\.(?:\w+\.)*_[a-z]\w*")


@pytest.mark.parametrize("place", BREAKS)
def test_a_private_name_is_gone(place: str) -> None:
    for library, what in NEEDS.items():
        if place.startswith(library):
            absent.require(what)
    if place == "torch._dynamo":  # to import it takes seconds
        assert find_spec(place), BREAKS[place]
        return
    (name,) = (name for name in PLACE if PLACE[name] == place)
    getattr(private_names, name)


def test_a_name_that_is_gone_does_not_say_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACE, "sleep", "torch.cuda._nap")
    monkeypatch.setitem(BREAKS, "torch.cuda._nap", "nothing waits")
    with pytest.raises(ImportError, match=r"torch\.cuda\._nap is gone: nothing waits"):
        from pa_tutorial.private_names import sleep  # noqa: F401


def test_a_private_name_stands_in_another_file() -> None:
    files = {*PACKAGE.rglob("*.py")} - {Path(private_names.__file__)}
    found = {file.name: UNDERSCORED.findall(file.read_text(encoding="utf-8")) for file in files}
    assert {file: names for file, names in found.items() if names} == {}
