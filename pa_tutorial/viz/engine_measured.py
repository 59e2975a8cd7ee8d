"""Plots of the serving engine, from the committed results of `make bench` in benchmarks/."""

import json
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.measured import RESULTS

# part of a decode step -> its colour
PARTS = {
    "build the past": style.K,
    "write K and V": style.V,
    "attention": style.Q,
    "the model around attention": style.lighter(style.QUIET, 0.4),
    "schedule, batch, choose tokens": style.INK,
}
WAYS_OF_MEMORY = ("contiguous", "paged", "paged, prefix caching")
BEFORE, AFTER = "block_lists", "cpu"


def load() -> dict:
    """The section `engine` of the committed results."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))["engine"]


def bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], texts: Sequence[str], dark: set[int]
) -> None:
    """Horizontal bars, the first on top, each with its text behind it; `dark` are in INK."""
    colors = [style.INK if index in dark else style.QUIET for index in range(len(names))]
    # Not clipped: a clip path is named by the last bits of the layout, which differ between runs.
    axes.barh(range(len(names)), values, color=colors, height=0.7, clip_on=False)
    for index, (value, text) in enumerate(zip(values, texts, strict=True)):
        axes.annotate(text, (value, index), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.3 * max(values))


def size(workload: dict) -> str:
    return f"{workload['num_requests']} requests of {workload['prompt_len']} tokens"


def in_words(name: str, words: str) -> str:
    """How a way is called in a figure."""
    if name == "no_attention":
        return "no attention at all"
    return f"paged: {name}" if name == words else words


@style.styled
def draw_step_ways(results: dict | None = None) -> Figure:
    """Milliseconds of a decode step of each way, and how many times that of the kernel."""
    results = results or load()
    steps = results["steps"]
    best = steps["best_gather"]
    names = [BEFORE, "contiguous", best, "paged_gather", "paged_online", AFTER, "no_attention"]
    times = [steps["times"][name]["median_ms"] for name in names]
    cpu = steps["times"][AFTER]["median_ms"]
    slower = {name: time / cpu for name, time in zip(names, times, strict=True)}
    figure, axes = style.new_figure(
        f"Copying blocks in Python takes {slower[BEFORE]:.1f} times as long for a decode step as "
        f"the paged kernel,\ncontiguous pasts {slower['contiguous']:.1f} times, and the best "
        f"gather in torch {slower[best]:.1f} times",
        2.9,
    )
    labels = [in_words(name, steps["words"][name]) for name in names]
    labels[names.index(best)] = f"best gather: {steps['words'][best].removeprefix('gather, ')}"
    texts = [
        f"{time:,.0f} ms ({slower[name]:.1f}×)" for name, time in zip(names, times, strict=True)
    ]
    bars(axes, labels, times, texts, {names.index(AFTER)})
    axes.set_xlabel(f"ms for a decode step with {size(results['workload'])}")
    return figure


def throughput_groups(results: dict) -> list[tuple[str, list[tuple[str, dict]]]]:
    """(title, [(name, row)]): the whole job offline, online, and with a prompt that all share."""
    jobs, words = results["jobs"], results["steps"]["words"]

    def named(rows: Sequence[dict]) -> list[tuple[str, dict]]:
        return [(in_words(row["name"], words[row["name"]]), row) for row in rows]

    offline = [("one request at a time: cpu", jobs["one_at_a_time"]), *named(jobs["offline"])]
    shared = [
        ("with prefix caching" if row["prefix_caching"] else "without prefix caching", row)
        for row in jobs["shared_prompt"]
    ]
    shared_len = jobs["shared_prompt"][0]["shared_len"]
    return [
        ("all requests are there at the start", offline),
        ("a request arrives before every step", named(jobs["online"])),
        (f"{shared_len} tokens of the prompts are the same (cpu)", shared),
    ]


@style.styled
def draw_throughput(results: dict | None = None) -> Figure:
    """Completion tokens a second of whole jobs, prefill included; beside it the decode steps'."""
    results = results or load()
    groups = throughput_groups(results)
    offline = {row["name"]: row for row in results["jobs"]["offline"]}
    without, with_caching = results["jobs"]["shared_prompt"]

    def gain(key: str) -> float:
        return offline[AFTER][key] / offline[BEFORE][key]

    figure, panels = style.new_figure(
        f"Reading blocks in place makes the job {gain('tokens_per_s'):.1f} times as fast, its "
        f"decode steps {gain('decode_tokens_per_s'):.1f} times: prefill stays;\nfinding a shared "
        f"prompt again: {with_caching['tokens_per_s'] / without['tokens_per_s']:.1f} times",
        5.6,
        nrows=3,
        sharex=True,
        height_ratios=[len(rows) + 1 for _, rows in groups],
    )
    highest = max(row["tokens_per_s"] for _, rows in groups for _, row in rows)
    for axes, (title, rows) in zip(panels, groups, strict=True):
        axes.set_title(title, weight="normal")
        texts = [
            f"{row['tokens_per_s']:,.0f}"
            + (
                f"  (decode {row['decode_tokens_per_s']:,.0f})"
                if "decode_tokens_per_s" in row
                else ""
            )
            for _, row in rows
        ]
        names = [name for name, _ in rows]
        dark = {index for index, (_, row) in enumerate(rows) if row.get("name") == AFTER}
        bars(axes, names, [row["tokens_per_s"] for _, row in rows], texts, dark)
        axes.set_xlim(0, 1.45 * highest)
    panels[-1].set_xlabel(
        f"generated tokens a second, prefill included ({size(results['workload'])})"
    )
    return figure


def draw_lane(axes: Axes, spans: Sequence[dict], y: float) -> None:
    """The spans of one decode step, side by side."""
    for part, color in PARTS.items():
        pieces = [(span["start_ms"], span["ms"]) for span in spans if span["name"] == part]
        axes.broken_barh(pieces, (y - 0.35, 0.7), facecolors=color, clip_on=False)


@style.styled
def draw_profile(results: dict | None = None) -> Figure:
    """Two time lines of one decode step: copied by a loop, and paged; the second also enlarged."""
    results = results or load()
    before, after = results["profile"][BEFORE], results["profile"][AFTER]
    part = before["parts"]["build the past"] / before["ms"]
    figure, panels = style.new_figure(
        f"Building the past, block by block, takes {part:.0%} of a decode step; the paged kernel "
        "needs no past",
        3.6,
        nrows=2,
        height_ratios=[2, 1],
    )
    draw_lane(panels[0], before["spans"], 0)
    draw_lane(panels[0], after["spans"], 1)
    draw_lane(panels[1], after["spans"], 0)
    panels[0].set_yticks([0, 1], ["copied by\na loop", "paged\nkernel"])
    panels[1].set_yticks([0], ["paged kernel,\nenlarged"])
    panels[0].invert_yaxis()
    for axes, lane in zip(panels, (before, after), strict=True):
        axes.set_xlim(0, lane["ms"])
        axes.tick_params(axis="y", length=0)
    panels[1].set_ylim(0.5, -0.5)
    # What each colour is, with its time before and after, right of the time lines.
    for index, (name, color) in enumerate(PARTS.items()):
        height = 1 - 0.27 * index
        where = {"transform": panels[0].transAxes, "va": "top"}
        panels[0].text(1.03, height + 0.02, "■", color=color, **where)
        times = " → ".join(f"{lane['parts'][name]:,.1f}" for lane in (before, after))
        panels[0].text(1.07, height, f"{name}\n{times} ms", **where)
    size_of = size(results["workload"])
    panels[1].set_xlabel(f"ms since the decode step began ({size_of}; torch.profiler)")
    return figure


@style.styled
def draw_batch_size(results: dict | None = None) -> Figure:
    """Time of a decode step, and tokens a second, by sequences that run at once."""
    results = results or load()
    rows = results["batch_size"]
    first, last = rows[0], rows[-1]
    counts = [row["num_running"] for row in rows]
    more = last["num_running"] // first["num_running"]
    longer = last["median_ms"] / first["median_ms"]
    faster = last["tokens_per_s"] / first["tokens_per_s"]
    figure, panels = style.new_figure(
        f"{more} times the sequences take {longer:.0f} times as long for a step: "
        f"{faster:.1f} times the tokens a second",
        3.0,
        ncols=2,
    )
    for axes, key, label in (
        (panels[0], "median_ms", "ms for a decode step"),
        (panels[1], "tokens_per_s", "tokens a second"),
    ):
        values = [row[key] for row in rows]
        axes.plot(counts, values, "o-", color=style.INK, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(0, 1.12 * max(values))
        axes.set_title(label, weight="normal")
        axes.set_xlabel(f"running sequences of {first['seq_len']} tokens (cpu)")
    for row in (first, last):
        panels[0].annotate(
            f"{row['median_ms']:.1f} ms,\n{row['ms_per_request']:.2f} a sequence",
            (row["num_running"], row["median_ms"]),
            xytext=(-6, 6) if row is last else (0, 12),
            textcoords="offset points",
            ha="right" if row is last else "left",
        )
    return figure


@style.styled
def draw_fixed_memory(results: dict | None = None) -> Figure:
    """The largest number of requests that run at once in the same memory."""
    results = results or load()
    memory = results["memory"]
    kinds = list(dict.fromkeys(row["requests"] for row in memory["rows"]))
    found = {(row["requests"], row["way"]): row for row in memory["rows"]}
    mixed, shared = kinds[-1], kinds[1]
    reserved = found[mixed, "contiguous"]["mean_running"]
    figure, panels = style.new_figure(
        f"Where contiguous reservations let {reserved:.0f} requests run, paging lets "
        f"{found[mixed, 'paged']['mean_running']:.0f} of mixed lengths run on average;\nwith a "
        f"shared prompt and prefix caching "
        f"{found[shared, WAYS_OF_MEMORY[-1]]['mean_running']:.0f}",
        3.9,
        nrows=len(kinds),
        sharex=True,
        height_ratios=[2, 3, 2],
    )
    for axes, kind in zip(panels, kinds, strict=True):
        ways = WAYS_OF_MEMORY if kind == shared else WAYS_OF_MEMORY[:-1]
        rows = [found[kind, way] for way in ways]
        axes.set_title(f"{rows[0]['num_requests']} requests: {kind}", weight="normal")
        texts = [
            f"{row['mean_running']:.1f} on average, at most {row['most_running']}; "
            f"{row['preemptions']} preemptions"
            for row in rows
        ]
        values = [row["mean_running"] for row in rows]
        bars(axes, [row["way"] for row in rows], values, texts, {1, 2})
    highest = max(row["mean_running"] for row in memory["rows"])
    panels[0].set_xlim(0, 2.3 * highest)
    panels[-1].set_xlabel(
        f"requests that run while others wait, in the memory of "
        f"{memory['slots'] // memory['max_len']} sequences of {memory['max_len']:,} tokens"
    )
    return figure
