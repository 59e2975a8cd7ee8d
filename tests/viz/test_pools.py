"""A reader's pool is drawn beside the right one, whatever a wrong function left of it."""

import math

import pytest
import torch

from pa_tutorial.viz.blocks import Frame, draw_pools, frame_of
from tests.simt.microscope.pictures import require_readable, texts_of

COUNTS, FREE = (0, 2, 1, 1, 0, 0, 0, 0), (7, 6, 5, 4)
A, B = [*b"THE CA"], [*b"THE CS"]


def frame(
    counts: object = COUNTS,
    free: object = FREE,
    a: tuple[object, object] = (A, [1, 2]),
    b: tuple[object, object] = (B, [1, 3]),
) -> Frame:
    return frame_of("b writes", 4, counts, {"a": a, "b": b}, free=free)


def drawn(yours: Frame, title: str = "") -> list[str]:
    """The words of the picture, its title first, up to those of the right pool."""
    figure = draw_pools({"yours": yours, "right": frame()}, title)
    require_readable(figure)
    texts = texts_of(figure)
    return [figure.get_suptitle(), *texts[: texts.index("right: b writes")]]


def test_a_right_pool_is_without_a_mark_and_alone_it_is_the_goal() -> None:
    title, *words = drawn(frame())
    assert title == "All blocks and tables are right"
    assert [word for word in words if "not" in word or "right" in word] == []
    figure = draw_pools({"right": frame()}, "b writes into a copy")
    require_readable(figure)
    assert figure.get_suptitle() == "The goal: b writes into a copy; 3 blocks in use, 4 free"


MISTAKES = {
    "a reference too many": (frame(counts=(0, 3, 1, 1, 0, 0, 0, 0)), "1: 3 refs, not 2"),
    "a block freed too early": (
        frame(counts=(0, 2, 1, 0, 0, 0, 0, 0), free=(*FREE, 3)),
        "in a table,\nbut free",
    ),
    "a block freed twice": (frame(free=(*FREE, 4)), "twice in the\nfree list"),
    "a block that is lost": (frame(free=FREE[:3]), "lost: not free,\nin no table"),
    "a shared tail written": (frame(b=(B, [1, 2])), "must be in\na's table"),
    "a stale table": (frame(b=(B, [2, 3])), "must be in\ntables a, b"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_bookkeeping_is_said_below_its_block(mistake: str) -> None:
    yours, words = MISTAKES[mistake]
    found = drawn(yours)
    assert found[0].endswith(" wrong (red)")
    assert words in found


HOSTILE = {
    "a block that doesn't exist": frame(a=(A, [1, 99])),
    "counts that aren't numbers": frame(counts=(None, math.nan, "two", 1.5, [1], math.inf, 0, 0)),
    "too few counts": frame(counts=(0, 1)),
    "too many counts": frame(counts=COUNTS + (1,) * 40),
    "tables in tables": frame(a=(A, [[1], [2]])),
    "a table without end": frame(a=(A, [1, 2] * 600)),
    "tensors": frame(torch.tensor(COUNTS), a=(torch.tensor(A), torch.tensor([1, 2, 3]))),
    "tokens that aren't numbers": frame(a=([None, "x", "$", [1], math.nan], [1, 2])),
    "more tokens than blocks": frame(a=(A * 50, [1])),
    "huge numbers": frame(counts=(10**400, 10**9), a=([10**400], [10**400, 2**63])),
    "a free list of anything": frame(free=[None, "1", 99, -1, 4, [4]]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_wrong_function_left_is_drawn(kind: str) -> None:
    assert drawn(HOSTILE[kind], title="append_token: `$x_{` is " * 6)[0].endswith("wrong (red)")


@pytest.mark.parametrize("block_size", [1, 32])
def test_words_can_be_read_with_any_block_size(block_size: int) -> None:
    tokens = [*range(block_size * 2 - 1)]
    yours, right = (
        frame_of("5 tokens", block_size, counts, {"a": (tokens, [1, 2])}, free=())
        for counts in ((0, 12, 0, 0), (0, 1, 1, 0))
    )
    require_readable(draw_pools({"yours": yours, "right": right}))
    require_readable(draw_pools({"right": right}))
