"""Pages that don't keep to their protocol end the engine with a line that names them."""

from collections.abc import Sequence

import pytest

from pa_tutorial.attention.tiny_lm import encode, load
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine.scheduler import StuckError
from pa_tutorial.exercises.pages import Pages
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.pages import Admission


class SaysTrue(Pages):
    def admit(self, token_ids: Sequence[int]) -> bool:
        return True


class NeverNow(Pages):
    def admit(self, token_ids: Sequence[int]) -> Admission:
        return Admission.LATER


class ReturnsNothing(Pages):
    def append(self, name: object, token_ids: Sequence[int]) -> None:
        super().append(name, token_ids)


class HasNoBlocks(Pages):
    def append(self, name: object, token_ids: Sequence[int]) -> None:
        raise OutOfBlocks("blocks needed: 3; free: 11")


WRONG = (
    (SaysTrue, TypeError, r"pages.admit\(…\) is of type bool; it must be an Admission: NOW, LATER"),
    (
        NeverNow,
        StuckError,
        r"pages.admit says Admission.LATER of the oldest.*11 of 11 blocks are f",
    ),
    (ReturnsNothing, TypeError, r"pages.append\(…\) is of type NoneType; it must be an Appended"),
    (HasNoBlocks, StuckError, r"pages.append has no blocks for it; 11 of 11 blocks are free"),
)


def run(engine: Engine) -> None:
    for _ in range(20):
        engine.step()


@pytest.mark.parametrize(("pages", "error", "message"), WRONG)
def test_wrong_pages_end_in_a_line_in_place_of_going_on_for_ever(
    pages: type[Pages], error: type[Exception], message: str
) -> None:
    engine = Engine(load(), pages(num_blocks=12, block_size=4))
    engine.add(encode("The while").tolist(), SamplingParams(max_tokens=5))
    with pytest.raises(error, match=message):
        run(engine)
