"""The moving picture shows what notebook 00's server does, also when it stands still."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pa_tutorial.paging.reservations import Blocks, Contiguous, long_tailed_requests
from pa_tutorial.paging.waste import Kind, memory_map_at, simulate
from pa_tutorial.viz import moving, style

COMMITTED = Path(__file__).parents[2] / "figures" / "paging.svg"
SVG = "{http://www.w3.org/2000/svg}"
REQUESTS = long_tailed_requests(400, seed=0)
MEMORIES = [Contiguous(moving.NUM_SLOTS, "max"), Blocks(moving.NUM_SLOTS, moving.PAGE)]
MOMENTS = [len(moving.ARRIVALS) + moving.STEPS.index(step) for step in (1, 520, 1042)]


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return ElementTree.fromstring(COMMITTED.read_bytes())


def painted(picture: ElementTree.Element, memory: int, until: int) -> dict[int, str]:
    """What one sees on each page when the frames up to this one are there."""
    seen = dict[int, str]()
    for group in picture.findall(f"{SVG}g")[memory]:
        if (name := group.get("class", "")).startswith("f") and int(name[1:]) <= until:
            for path in group:
                for column, row, width in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path.get("d")):
                    first = int(row) * moving.COLUMNS + int(column)
                    seen |= dict.fromkeys(range(first, first + int(width)), path.get("class"))
    return seen


def test_the_committed_picture_is_what_the_code_draws_and_small() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == moving.draw_moving_pages(), "`make refresh`"
    assert COMMITTED.stat().st_size < 200_000


@pytest.mark.parametrize("memory", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_moment_shows_the_memory_after_that_many_steps(picture, memory, moment) -> None:
    step = moving.STEPS[moment - len(moving.ARRIVALS)]
    drawn = memory_map_at(step, REQUESTS, MEMORIES[memory])
    seen = painted(picture, memory, moment)
    assert len(seen) == moving.NUM_SLOTS // moving.PAGE
    colors = dict[int, set[str]]()
    for page, looks in seen.items():
        slot = page * moving.PAGE
        kind, owner = drawn.kinds[slot], int(drawn.owner[slot])
        says = {Kind.TOKENS: "token", Kind.RESERVED: "later", Kind.INTERNAL: "never"}
        assert looks.rstrip("01234567") == says.get(kind, "free"), page
        if looks[-1].isdigit():
            colors.setdefault(owner, set()).add(looks[-1])
    given = [color for of_one in colors.values() for color in of_one]
    assert len(given) == len(colors)  # a request has one colour
    assert len({*given}) == min(len(colors), len(style.SEQUENCES))  # and, among few, its own


def test_words_of_a_still_are_those_of_the_last_frame_and_true(picture) -> None:
    texts = {text.text for text in picture.iter(f"{SVG}text") if "last" in text.get("class", "")}
    last, counts = moving.LAST_STEP - 1, []
    for run in (simulate(REQUESTS, memory) for memory in MEMORIES):
        running, waiting = int(run.num_running[last]), int(run.num_waiting[last])
        counts.append(f"{running} at once, {400 - running - waiting} finished")
    assert texts == {moving.ARRIVED, *counts}
    assert [count.split()[0] for count in counts] == re.findall(r"\d+", moving.TITLE)


def test_nothing_moves_for_a_reader_who_asked_for_no_motion(picture) -> None:
    rules = picture.find(f"{SVG}style").text
    always, _, if_wanted = rules.partition("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in always
    assert "animation" in if_wanted
