"""The figure of notebook 15: a run of the engine, sequence by sequence and block by block."""

from collections.abc import Sequence as Several
from itertools import pairwise
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.request import Request
from pa_tutorial.viz import style
from pa_tutorial.viz.blocks import hue, letter
from pa_tutorial.viz.drawing import board, box, cell, frame, note, plural, write

BLOCK = 0.62  # the height of a block's row, in rows of a sequence
MOST_LETTERS = 100  # in a line of the title


class Moment(NamedTuple):
    """What a sequence did in a step: how many tokens it computed (0: it waited), which token it
    wrote (None: none), and which blocks it had afterwards."""

    num_computed: int
    token: int | None
    blocks: list[int]


History = list[dict[str, Moment]]  # per step: name of a sequence -> what it did


def moments(engine: Engine, requests: Several[Request]) -> dict[str, Moment]:
    """The engine's last step, by sequence: a, b, c, … in the order in which they were made. One
    that ended in an earlier step has none."""
    plan = engine.scheduler.plan
    computed = {part.sequence: len(part.slots) for part in plan}
    wrote = {part.sequence for part in plan if part.is_last}
    sequences = [sequence for request in requests for sequence in request.samples]
    found = {}
    for number, sequence in enumerate(sequences):
        # A fork's first token comes out of the step that computed its prompt for the first sample.
        is_new = len(sequence.generated) == 1 and sequence.index > 0 and sequence not in computed
        writes = sequence in wrote or is_new
        if writes or sequence.finish_reason is None:
            blocks = engine.pages.table(sequence.age) if sequence.num_in_pages else []
            token = sequence.token_ids[-1] if writes else None
            found[chr(ord("a") + number)] = Moment(computed.get(sequence, 0), token, blocks)
    return found


def waits(moment: Moment) -> bool:
    return moment.token is None and moment.num_computed == 0


def preemptions(history: History) -> dict[str, int]:
    """Name of a sequence -> the step in which it first gave up its blocks."""
    found: dict[str, int] = {}
    for step, (before, now) in enumerate(pairwise(history), start=1):
        for name, moment in now.items():
            if waits(moment) and name in before and not waits(before[name]):
                found.setdefault(name, step)
    return found


def waits_at_first(history: History, name: str) -> int:
    """Steps in which a sequence waited before its first."""
    its = [moment[name] for moment in history if name in moment]
    return next((step for step, moment in enumerate(its) if not waits(moment)), len(its))


def title_of(history: History, num_blocks: int) -> str:
    names = sorted({name for moment in history for name in moment})
    found = [f"{name} gives up its blocks in step {s}" for name, s in preemptions(history).items()]
    for name in names:
        if steps := waits_at_first(history, name):
            found.append(f"{name} waits {plural(steps, 'step')} to start")
    what = f"{num_blocks} blocks serve {len(names)} sequences"
    return fill(f"{what}: {', and '.join(found) or 'they always suffice'}", MOST_LETTERS)


@style.styled
def draw_serving(history: History, num_blocks: int) -> Figure:
    """Time goes to the right, a column per step. Above, a row per sequence: the token that it
    wrote; outlined where it computed several (a prompt, or all again), × where it gave up its
    blocks, grey where it waited. Below, a row per physical block, in the colour of the sequence
    that has it after the step; a shared block has two.

    num_blocks  of the pool, with the null block, which isn't drawn
    """
    names = sorted({name for moment in history for name in moment})
    title = title_of(history, num_blocks - 1)
    below = len(names) + 1.5
    bottom = below + BLOCK * (num_blocks - 1) + 0.1
    figure, axes = style.new_figure(title, 0.4 + 0.15 * title.count("\n") + 0.25 * bottom)
    board(axes, len(history), bottom, -2.6, -0.1)
    for row, name in enumerate(names):
        draw_sequence(axes, row, name, history)
    note(axes, -0.3, len(names) + 0.6, "step", "right")
    for step in range(0, len(history), 5):
        note(axes, step + 0.5, len(names) + 0.6, step)
    for block in range(1, num_blocks):
        draw_block(axes, below + BLOCK * (block - 1), block, history)
    return figure


def draw_sequence(axes: Axes, row: int, name: str, history: History) -> None:
    write(axes, -0.3, row + 0.5, name, "right", weight="bold")
    given_up = preemptions(history).get(name)
    for step, moment in enumerate(history):
        if name not in moment:
            continue
        if waits(moment[name]):
            cell(axes, step, row, style.EMPTY, "×" if step == given_up else "")
            continue
        num_computed, token, _ = moment[name]
        color = hue(name) if num_computed > 1 else style.lighter(hue(name), 0.55)
        cell(axes, step, row, color, "" if token is None else letter(token))
        if num_computed > 1:
            frame(axes, step + 0.06, row + 0.06, 0.88, 0.88)


def draw_block(axes: Axes, y: float, block: int, history: History) -> None:
    note(axes, -0.3, y + BLOCK / 2, f"block {block}" if block == 1 else block, "right")
    for step, moment in enumerate(history):
        owners = sorted(name for name, one in moment.items() if block in one.blocks)
        if not owners:
            box(axes, step, y, 1, BLOCK, style.EMPTY)
        for part, name in enumerate(owners):
            height = BLOCK / len(owners)
            box(axes, step, y + part * height, 1, height, hue(name), linewidth=0.3)
