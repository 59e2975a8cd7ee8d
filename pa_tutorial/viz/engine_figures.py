"""The figures of notebook 16: an engine at work, drawn from what it did."""

from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.engine import Engine, StepStatistics
from pa_tutorial.engine.request import Request, Sequence
from pa_tutorial.viz import style
from pa_tutorial.viz.blocks import Frame, hue, letter, snapshot


def name_of(sequence: Sequence) -> str:
    """a, b, c, … by request; a2 is the second sample of a."""
    name = chr(ord("a") + sequence.request.number % 26)
    return name if sequence.index == 0 else f"{name}{sequence.index + 1}"


@dataclass(frozen=True)
class Moment:
    """What every sequence did in one step.

    computed   tokens that it computed, by its name
    waiting    had no blocks after the step, and no part in it
    preempted  lost its blocks in this step
    """

    computed: dict[str, int]
    waiting: tuple[str, ...]
    preempted: tuple[str, ...]


class Film:
    """Takes an engine's steps and keeps what happened.

    requests  all that came in through `add`
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: list[Request] = []
        self.moments: list[Moment] = []

    def add(self, prompt: Several[int], *params: object) -> Request:
        self.requests.append(self.engine.add(prompt, *params))
        return self.requests[-1]

    def step(self) -> StepStatistics:
        """One step of the engine, kept."""
        scheduler = self.engine.scheduler
        before = {sequence: sequence.num_preemptions for sequence in self.sequences()}
        statistics = self.engine.step()
        computed = {name_of(each.sequence): len(each.slots) for each in scheduler.plan}
        waiting = [*scheduler.waiting, *scheduler.suspects]
        self.moments.append(
            Moment(
                computed=computed,
                waiting=tuple(name_of(each) for each in waiting if name_of(each) not in computed),
                preempted=tuple(
                    name_of(each) for each, count in before.items() if each.num_preemptions > count
                ),
            )
        )
        return statistics

    def run(self) -> None:
        """Steps until nobody is left."""
        while not self.engine.is_idle:
            self.step()

    def sequences(self) -> list[Sequence]:
        return [sample for request in self.requests for sample in request.samples]

    def frame(self, caption: str) -> Frame:
        """The pool and the block tables now."""
        tables = {name_of(each): each.table for each in self.sequences() if each.table is not None}
        return snapshot(caption, self.engine.allocator, tables)


@style.styled
def draw_timeline(moments: Several[Moment], title: str) -> Figure:
    """A row for each sequence, a column for each step.

    The number is how many tokens the sequence computed in this step. Hatched: it waits.
    ×: it had to give up its blocks.
    """
    names = sorted({name for m in moments for name in (*m.computed, *m.waiting)})
    figure, axes = style.new_figure(title, 0.75 + 0.26 * len(names))
    axes.set_xlim(-1.5, len(moments))
    axes.set_ylim(len(names) + 1, -0.1)
    axes.axis("off")
    for row, name in enumerate(names):
        axes.text(-0.5, row + 0.5, name, ha="center", va="center", weight="bold")
        for step, moment in enumerate(moments):
            _draw_part(axes, step, row, name, moment)
    every = 5 if len(moments) > 12 else 1
    for step in range(0, len(moments), every):
        place = (step + 0.5, len(names) + 0.45)
        axes.text(*place, str(step), ha="center", va="center", color=style.QUIET)
    axes.text(-1.4, len(names) + 0.45, "step", va="center", color=style.QUIET)
    return figure


def _draw_part(axes: Axes, step: int, row: int, name: str, moment: Moment) -> None:
    """One sequence in one step."""
    if name in moment.computed:
        number = moment.computed[name]
        color = hue(name) if number > 1 else style.lighter(hue(name), 0.5)
        style.cell(axes, step, row, color, str(number))
    elif name in moment.preempted:
        style.cell(axes, step, row, style.EMPTY, "×")
    elif name in moment.waiting:
        style.cell(axes, step, row, style.EMPTY, unused=True)


@style.styled
def draw_batch(batch: Batch, names: Several[str], title: str) -> Figure:
    """The tensors of a step. A column is a token; its colour is its sequence, in the order of the
    batch. Below, a row of block_tables and the seq_len of each sequence.

    names  of the sequences, in the order of the batch
    """
    owners = [name for name, n in zip(names, batch.query_lens, strict=True) for _ in range(n)]
    num_tokens, width = len(owners), batch.block_tables.shape[1]
    figure, axes = style.new_figure(title, 1.5 + 0.27 * len(names))
    axes.set_xlim(-4.2, max(num_tokens, width + 8) + 0.2)
    axes.set_ylim(6.2 + 1.1 * len(names), -0.1)
    axes.axis("off")
    rows = (
        ("input_ids", [letter(token) for token in batch.input_ids.tolist()]),
        ("positions", batch.positions.tolist()),
        ("slot_mapping", batch.slot_mapping.tolist()),
    )
    for row, (label, values) in enumerate(rows):
        axes.text(-0.3, 1.1 * row + 0.5, label, ha="right", va="center")
        for column, (value, name) in enumerate(zip(values, owners, strict=True)):
            _draw_value(axes, column, 1.1 * row, hue(name), value)
    for column in batch.last_rows.tolist():
        axes.text(column + 0.5, 3.75, "▲", ha="center", va="center", fontsize=7)
    axes.text(-0.3, 3.75, "last_rows", ha="right", va="center")
    axes.text(0, 5.0, "block_tables", va="center", color=style.QUIET)
    for x, label in ((width + 2.3, "seq_lens"), (width + 6.0, "query_lens")):
        axes.text(x, 5.0, label, ha="center", va="center", color=style.QUIET)
    for index, name in enumerate(names):
        y = 5.5 + 1.1 * index
        axes.text(-0.3, y + 0.5, name, ha="right", va="center", weight="bold")
        for column, block in enumerate(batch.block_tables[index].tolist()):
            _draw_value(axes, column, y, hue(name) if block else style.EMPTY, block)
        _draw_value(axes, width + 1.8, y, hue(name), int(batch.seq_lens[index]))
        _draw_value(axes, width + 5.5, y, hue(name), batch.query_lens[index])
    return figure


def _draw_value(axes: Axes, x: float, y: float, color: str, value: object) -> None:
    style.cell(axes, x, y, color if color == style.EMPTY else style.lighter(color, 0.5), str(value))


@style.styled
def draw_statistics(statistics: Several[StepStatistics], num_usable: int, title: str) -> Figure:
    """What the engine counted, step by step. A vertical line: a sequence gave up its blocks."""
    figure, (people, blocks, tokens) = style.new_figure(title, 3.8, nrows=3, sharex=True)
    steps = [s.step - statistics[0].step for s in statistics]
    light, pale = style.lighter(style.INK, 0.5), style.lighter(style.INK, 0.8)

    people.plot(steps, [s.num_running for s in statistics], color=style.INK, linewidth=1.5)
    people.plot(steps, [s.num_waiting for s in statistics], color=style.QUIET, linewidth=1.5)
    _name(people, ("running", style.INK), ("waiting", style.QUIET))
    counts = [0, *(s.num_preemptions - statistics[0].num_preemptions for s in statistics)]
    for step, (before, after) in zip(steps, pairwise(counts), strict=True):
        if after > before:
            people.axvline(step, color=style.NAN, linewidth=0.6)
    people.set_ylabel("sequences")
    people.margins(y=0.2)

    used = [s.blocks_used for s in statistics]
    known = [s.blocks_used + s.blocks_cached for s in statistics]
    blocks.fill_between(steps, known, step="mid", color=pale)
    blocks.fill_between(steps, used, step="mid", color=light)
    blocks.axhline(num_usable, color=style.QUIET, linewidth=0.8, linestyle=":")
    _name(blocks, ("┈ the pool", style.QUIET), ("■ held", light), ("■ cached", pale))
    blocks.set_ylabel("blocks")
    blocks.set_ylim(0, 1.3 * num_usable)

    decode = [s.num_decode for s in statistics]
    prefill = [s.num_prefill for s in statistics]
    tokens.bar(steps, decode, width=1, color=light)
    tokens.bar(steps, prefill, bottom=decode, width=1, color=style.INK)
    _name(tokens, ("■ prefill", style.INK), ("■ decode", light))
    tokens.set_ylabel("tokens")
    tokens.set_xlabel("step")
    return figure


def _name(axes: Axes, *names: tuple[str, str]) -> None:
    """What is drawn, right of the axes: the sign in its colour, the word in ink."""
    for row, (text, color) in enumerate(names):
        sign, _, word = text.rpartition(" ")
        place = (1.01, 0.9 - 0.22 * row)
        where = {"transform": axes.transAxes, "va": "center"}
        if sign == "■":
            axes.text(*place, sign, color=color, **where)
            axes.text(place[0] + 0.025, place[1], word, color=style.INK, **where)
        else:
            axes.text(*place, text, color=color, **where)
