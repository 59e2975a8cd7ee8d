"""Pages that don't keep to their protocol end the engine with a line that names them."""

from unittest.mock import Mock

import pytest

from pa_tutorial.attention.tiny_lm import encode, load
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine.scheduler import StuckError
from pa_tutorial.exercises.pages import Pages
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.pages import Admission

# The method, what it does instead, and how the engine ends.
WRONG = (
    ("admit", {"return_value": True}, TypeError, "pages.admit.* is of type bool"),
    ("admit", {"return_value": Admission.LATER}, StuckError, "LATER of the oldest.*11 of 11"),
    ("append", {"return_value": None}, TypeError, "pages.append.* is of type NoneType"),
    ("append", {"side_effect": OutOfBlocks("none")}, StuckError, "pages.append has no blocks"),
)


@pytest.mark.parametrize(("method", "does", "error", "message"), WRONG)
def test_wrong_pages_end_in_a_line_in_place_of_going_on_for_ever(
    method: str, does: dict, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(num_blocks=12, block_size=4)
    monkeypatch.setattr(pages, method, Mock(**does))
    engine = Engine(load(), pages)
    engine.add(encode("The while").tolist(), SamplingParams(max_tokens=5))
    with pytest.raises(error, match=message):
        [engine.step() for _ in range(20)]
