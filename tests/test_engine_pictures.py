"""The figures of the engine: what is drawn is what the engine did, and every name is a real one."""

import importlib
import re

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.attention.tiny_lm import load
from pa_tutorial.engine.batch import build_batch
from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.llm import LLM
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.viz import style
from pa_tutorial.viz.engine_figures import Film, draw_batch, draw_statistics, draw_timeline
from pa_tutorial.viz.engine_map import ARROWS, PARTS, corner, draw_architecture
from pa_tutorial.viz.engine_stories import ARRIVALS, LENGTHS, PROMPTS, serve, tokens


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def found(where: str) -> object:
    """Import as much of a dotted path as is a module; the rest are attributes."""
    names = where.split(".")
    for end in range(len(names), 0, -1):
        try:
            thing = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        for name in names[end:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(f"nothing of {where} can be imported")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_box_of_the_architecture_is_a_thing_of_ours(part) -> None:
    thing = found(part.where)
    first = re.split(r"[ ,]", part.name)[0].split(".")[-1]
    assert first == "a" or getattr(thing, "__name__", "") == first


def test_every_arrow_of_the_architecture_joins_two_boxes() -> None:
    names = {part.name for part in PARTS}
    assert len(names) == len(PARTS)
    assert {name for start, end, _ in ARROWS for name in (start, end)} <= names
    assert len({corner(part) for part in PARTS}) == len(PARTS)
    assert names <= set(texts(draw_architecture()))


def test_film_keeps_every_token_that_was_computed() -> None:
    film = serve(num_blocks=64, token_budget=16)
    computed: dict[str, int] = {}
    for moment in film.moments:
        for name, number in moment.computed.items():
            computed[name] = computed.get(name, 0) + number
    cached = film.engine.scheduler.num_cached
    expected = sum(
        len(tokens(prompt)) + length - 1 for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    )
    assert sum(computed.values()) + cached == expected
    assert not any(moment.waiting or moment.preempted for moment in film.moments)


def test_film_knows_who_waits_and_who_was_preempted() -> None:
    film = serve(num_blocks=13, token_budget=16)
    preempted = [name for moment in film.moments for name in moment.preempted]
    assert len(preempted) == film.engine.scheduler.num_preemptions > 0
    for step, moment in enumerate(film.moments):
        statistics = film.engine.statistics[step]
        assert len(moment.waiting) == statistics.num_waiting
        assert not set(moment.waiting) & set(moment.computed)
    # who arrives is there at once, computing or waiting
    for request, arrival in enumerate(ARRIVALS):
        moment, name = film.moments[arrival], chr(ord("a") + request)
        assert name in (*moment.computed, *moment.waiting)


def test_timeline_has_a_number_for_each_part_of_a_step_and_a_mark_for_each_preemption() -> None:
    film = serve(num_blocks=13, token_budget=16)
    drawn = texts(draw_timeline(film.moments, "title"))
    numbers = [str(n) for moment in film.moments for n in moment.computed.values()]
    steps = [str(step) for step in range(0, len(film.moments), 5)]
    names = list("abcdef")
    marks = ["×"] * film.engine.scheduler.num_preemptions
    assert sorted(drawn) == sorted([*numbers, *steps, *names, *marks, "step"])


def test_timeline_hatches_who_waits() -> None:
    film = serve(num_blocks=13, token_budget=16)
    (axes,) = draw_timeline(film.moments, "title").axes
    hatched = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_hatch()]
    waiting = [n for m in film.moments for n in m.waiting if n not in m.preempted]
    assert len(hatched) == len(waiting) > 0


def test_batch_is_drawn_with_all_its_numbers() -> None:
    film = Film(Engine(load(), num_blocks=12, block_size=4, chunk_size=8))
    film.add(tokens("The while"), SamplingParams(max_tokens=5))
    film.add(tokens("A statement"), SamplingParams(max_tokens=5))
    film.step()
    film.step()
    batch = build_batch(film.engine.scheduler.plan)
    names = ["a", "b"] if batch.seq_lens[0] == 9 else ["b", "a"]
    drawn = texts(draw_batch(batch, names, "title"))
    for tensor in (batch.positions, batch.slot_mapping, batch.block_tables, batch.seq_lens):
        for value in tensor.flatten().tolist():
            assert str(value) in drawn
    assert drawn.count("▲") == len(batch.last_rows) == 2


def test_statistics_are_drawn_as_they_were_counted() -> None:
    llm = LLM(num_blocks=12, block_size=8, chunk_size=16)
    llm.generate(list(PROMPTS), SamplingParams(max_tokens=12), progress=False)
    people, blocks, bars = draw_statistics(llm.statistics, 11, "title").axes
    running, waiting = people.lines[:2]
    assert list(running.get_ydata()) == [s.num_running for s in llm.statistics]
    assert list(waiting.get_ydata()) == [s.num_waiting for s in llm.statistics]
    preempted = {s.step for s in llm.statistics} & {
        after.step
        for before, after in zip(llm.statistics, llm.statistics[1:], strict=False)
        if after.num_preemptions > before.num_preemptions
    }
    assert {int(line.get_xdata()[0]) for line in people.lines[2:]} == preempted != set()
    heights = [patch.get_height() for patch in bars.patches]
    steps = len(llm.statistics)
    assert heights == [
        *(s.num_decode for s in llm.statistics),
        *(s.num_prefill for s in llm.statistics),
    ]
    assert len(heights) == 2 * steps
    assert blocks.lines[0].get_ydata()[0] == 11


def test_titles_fit_into_the_width_of_a_notebook() -> None:
    for figure in (draw_architecture(),):
        figure.draw_without_rendering()
        width = figure._suptitle.get_window_extent().width
        assert width < style.WIDTH * figure.dpi
