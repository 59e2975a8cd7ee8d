"""The figures of notebooks 25 and 26: what a step costs, an engine's steps, a batch."""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Several

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.viz import style
from pa_tutorial.viz.blocks import hue, letter
from pa_tutorial.viz.cpu_measured import RESULTS
from pa_tutorial.viz.drawing import board, cell, note, write

WAITS = "waits"


@style.styled
def draw_timeline(history: Several[Mapping[str, int | str]], title: str) -> Figure:
    """One line per sequence, one column per step.

    history  for each step: name of a sequence -> how many tokens it computed, or WAITS.
             Grey: it waits; with ×: it computed in the previous step, and lost its blocks.
    """
    names = sorted({name for moment in history for name in moment})
    figure, axes = style.new_figure(title, 0.75 + 0.26 * len(names))
    board(axes, len(history), len(names) + 1, -1.5, -0.1)
    for row, name in enumerate(names):
        write(axes, -0.5, row + 0.5, name, weight="bold")
        before: int | str = WAITS
        for step, moment in enumerate(history):
            if moment.get(name) == WAITS:
                cell(axes, step, row, style.EMPTY, "×" if before != WAITS else "")
            elif name in moment:
                color = hue(name) if moment[name] > 1 else style.lighter(hue(name), 0.5)
                cell(axes, step, row, color, moment[name])
            before = moment.get(name, WAITS)
    for step in range(0, len(history), 5 if len(history) > 12 else 1):
        note(axes, step + 0.5, len(names) + 0.45, step)
    note(axes, -1.4, len(names) + 0.45, "step", "left")
    return figure


@style.styled
def draw_batch(batch: Mapping[str, Tensor], names: Several[str], title: str) -> Figure:
    """The tensors of a step. A column is a token, in the colour of its sequence.
    Below are the row of block_tables, the seq_len and the query_len of each sequence.

    names  names of the sequences, in the order of the batch
    """
    query_lens, width = batch["query_lens"].tolist(), batch["block_tables"].shape[1]
    owners = [name for name, number in zip(names, query_lens, strict=True) for _ in range(number)]
    figure, axes = style.new_figure(title, 1.25 + 0.27 * len(names))
    board(axes, max(len(owners), width + 8) + 0.2, 5.2 + 1.1 * len(names), -4.2, -0.1)
    for row, label in enumerate(("input_ids", "positions", "slot_mapping")):
        write(axes, -0.3, 1.1 * row + 0.5, label, "right")
        for column, (value, name) in enumerate(zip(batch[label].tolist(), owners, strict=True)):
            _draw_value(axes, column, 1.1 * row, name, value if row else letter(value))
    note(axes, 0, 4.0, "block_tables", "left")
    for x, label in ((width + 2.3, "seq_lens"), (width + 6.0, "query_lens")):
        note(axes, x, 4.0, label)
    for index, name in enumerate(names):
        y = 4.5 + 1.1 * index
        write(axes, -0.3, y + 0.5, name, "right", weight="bold")
        for column, block in enumerate(batch["block_tables"][index].tolist()):
            _draw_value(axes, column, y, name if block else "", block)
        _draw_value(axes, width + 1.8, y, name, int(batch["seq_lens"][index]))
        _draw_value(axes, width + 5.5, y, name, query_lens[index])
    return figure


def _draw_value(axes: Axes, x: float, y: float, name: str, value: object) -> None:
    cell(axes, x, y, style.lighter(hue(name), 0.5) if name else style.EMPTY, value)


@style.styled
def draw_step_ways(results: dict | None = None) -> Figure:
    """Milliseconds of a decode step for each way, and the ratio to the kernel's.

    results  the section `engine` of a run of `make bench`; None: the committed one
    """
    results = results or json.loads(RESULTS.read_text(encoding="utf-8"))["engine"]
    steps, workload = results["steps"], results["workload"]
    best, kernel = steps["best_gather"], "cpu"
    labels = {name: steps["words"][name] for name in ("block_lists", "contiguous")}
    labels[best] = f"best gather: {steps['words'][best].removeprefix('gather, ')}"
    labels |= {name: f"paged: {name}" for name in ("paged_gather", "paged_online", kernel)}
    labels["no_attention"] = "no attention at all"
    times = {name: steps["times"][name]["median_ms"] for name in labels}
    slower = {name: time / times[kernel] for name, time in times.items()}
    figure, axes = style.new_figure(
        f"A decode step that copies blocks in Python takes {slower['block_lists']:.1f} times as "
        f"long as with the paged kernel,\nwith contiguous pasts {slower['contiguous']:.1f} times, "
        f"and with the best gather in torch {slower[best]:.1f} times",
        2.9,
    )
    colors = [style.INK if name == kernel else style.QUIET for name in labels]
    # Not clipped: a clip path is named by the last bits of the layout, which differ between runs.
    axes.barh(range(len(labels)), times.values(), color=colors, height=0.7, clip_on=False)
    for row, name in enumerate(labels):
        text, place = f"{times[name]:,.0f} ms ({slower[name]:.1f}×)", (times[name], row)
        axes.annotate(text, place, xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(labels)), labels.values())
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.3 * max(times.values()))
    size = f"{workload['num_requests']} requests of {workload['prompt_len']} tokens"
    axes.set_xlabel(f"ms for a decode step with {size}")
    return figure
