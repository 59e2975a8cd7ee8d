"""Figures of decode steps over many devices, computed on paper; nothing here is measured."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.distributed.paper import (
    Times,
    best_split,
    decode_time,
    head_splits,
    num_users,
    splits,
)
from pa_tutorial.distributed.sizes import (
    H100,
    INFINIBAND_NDR,
    LLAMA_3_1_70B,
    NVLINK_4,
    Device,
    Link,
    ModelSizes,
)
from pa_tutorial.viz import style

COUNTS = (1, 2, 4, 8, 16, 32, 64)  # devices
SHORT, LONG = (1, 2048), (8, 131_072)  # batch and context
BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = tuple(2**n for n in (11, 13, 15, 17, 19, 20))
# part of a step -> its colour
PARTS = {"weights": style.QUIET, "K and V": style.K, "talking": style.INK}

Split = tuple[int, int]


def tokens_in_words(tokens: int) -> str:
    return f"{tokens // 2**20}M" if tokens >= 2**20 else f"{tokens // 1024}k"


def count_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Numbers of devices, each twice the one before."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()


# Time over devices ------------------------------------------------------------------------------


def milliseconds(model: ModelSizes, device: Device, link: Link, batch: int, context: int) -> dict:
    """What is done -> devices -> (split, milliseconds of a step, whether it fits)."""

    def of(split: Split) -> tuple[Split, float, bool]:
        heads, contexts = split
        seconds = decode_time(model, device, link, batch, context, *split).total
        users = num_users(model, device, context, heads=heads, contexts=contexts)
        return split, 1e3 * seconds, users >= batch

    best = {n: best_split(model, device, link, batch, context, n) for n in COUNTS}
    return {
        "heads only": {n: of((n, 1)) for n in COUNTS if n in head_splits(model)},
        "contexts only": {n: of((1, n)) for n in COUNTS},
        "best split": {n: of(split) for n, split in best.items() if split},
    }


def draw_totals(axes: Axes, lines: dict) -> None:
    """A line for each way; hollow where the memory of the devices is too small."""
    looks = {"heads only": style.INK, "contexts only": style.QUIET, "best split": style.Q}
    for name, color in looks.items():
        times = [ms for _, ms, _ in lines[name].values()]
        wide = 5 if name == "best split" else 1.5  # below the others, which it often meets
        faint = style.lighter(color, 0.4) if name == "best split" else color
        axes.plot(list(lines[name]), times, color=faint, linewidth=wide, zorder=1 + (wide < 5))
        for n, (_, ms, fits) in lines[name].items():
            if name != "best split":
                face = color if fits else style.PAPER
                axes.plot(n, ms, "o", ms=4.5, color=color, markerfacecolor=face, zorder=3)
    count_axis(axes, COUNTS)
    axes.set_yscale("log")
    axes.set_ylim(4, 250)
    axes.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()


def draw_parts(axes: Axes, chosen: dict[int, Split], times_of: Callable[[Split], Times]) -> None:
    """What the time of the best split consists of, a bar for each number of devices.

    Of batches that are read, not computed: reading takes longer than computing.
    """
    for place, n in enumerate(COUNTS):
        if n not in chosen:
            axes.text(place, 0.4, "does not fit", ha="center", va="bottom", color=style.QUIET,
                      rotation=90)  # fmt: skip
            continue
        times = times_of(chosen[n])
        bottom = 0.0
        parts = zip(PARTS.values(), (times.weights, times.kv, times.talking), strict=True)
        for color, seconds in parts:
            axes.bar(place, 1e3 * seconds, 0.75, bottom, color=color, clip_on=False)
            bottom += 1e3 * seconds
        heads, contexts = chosen[n]
        axes.text(place, bottom + 0.3, f"{heads}×{contexts}", ha="center", va="bottom", size=8)
    axes.set_xticks(range(len(COUNTS)), [str(n) for n in COUNTS])
    axes.set_xlim(-0.6, len(COUNTS) - 0.4)


@style.styled
def draw_time(
    model: ModelSizes = LLAMA_3_1_70B, device: Device = H100, link: Link = NVLINK_4
) -> Figure:
    """A step over 1 to 64 devices, for one short sequence and for eight long ones."""
    lines = {point: milliseconds(model, device, link, *point) for point in (SHORT, LONG)}
    short = lines[SHORT]["heads only"]
    stop = min(short, key=lambda n: short[n][1])
    both = min(lines[LONG]["best split"].values(), key=lambda entry: entry[1])
    alone = min(entry[1] for entry in lines[LONG]["heads only"].values())
    figure, panels = style.new_figure(
        f"Dividing heads pays up to {stop} devices; for eight long contexts, dividing these too\n"
        f"makes the fastest step {alone / both[1]:.1f} times as fast: heads × contexts = "
        f"{both[0][0]} × {both[0][1]}",
        5.2,
        ncols=2,
        nrows=2,
        sharey="row",
    )
    for (top, below), (batch, context) in zip(panels.T, (SHORT, LONG), strict=True):
        words = "1 sequence" if batch == 1 else f"{batch} sequences"
        top.set_title(f"{words} of {context:,} tokens", weight="normal")
        draw_totals(top, lines[batch, context])
        chosen = {n: entry[0] for n, entry in lines[batch, context]["best split"].items()}
        draw_parts(
            below,
            chosen,
            lambda split, at=(batch, context): decode_time(model, device, link, *at, *split),
        )
        below.set_xlabel(f"devices ({model.name}, {device.name}, {link.name})", size=8)
    name_lines(panels, lines)
    panels[0, 0].set_ylabel("ms for a step")
    panels[1, 0].set_ylabel("ms, best split")
    return figure


def name_lines(panels: Sequence[Sequence[Axes]], lines: dict) -> None:
    """What the lines above and the colours below are."""
    last = COUNTS[-1]
    right = panels[0][1]
    names = {
        "contexts only": ("contexts only:\nall weights on each", style.QUIET),
        "heads only": ("heads only", style.INK),
        "best split": ("best split", style.Q),
    }
    for name, (text, color) in names.items():
        height = lines[LONG][name][last][1]
        right.annotate(text, (last, height), xytext=(8, 0), textcoords="offset points",
                       va="center", color=color, annotation_clip=False)  # fmt: skip
    left = panels[0][0]
    left.text(0.03, 0.04, "hollow: does not fit", transform=left.transAxes, color=style.QUIET)
    below = panels[1][1]
    for index, (name, color) in enumerate(reversed(PARTS.items())):
        where = {"transform": below.transAxes, "va": "top"}
        below.text(1.05, 0.92 - 0.13 * index, "■", color=color, **where)
        text = name if name == "talking" else f"reading {name}"
        below.text(1.11, 0.92 - 0.13 * index, text, **where)


# The best split, by batch and context -----------------------------------------------------------


def fastest_split(
    model: ModelSizes, device: Device, link: Link, batch: int, context: int
) -> tuple[float, Split] | None:
    """Seconds, and the (heads, contexts) with the fastest step of all on up to 64 devices."""
    best = (best_split(model, device, link, batch, context, n) for n in COUNTS)
    return min(
        (
            (decode_time(model, device, link, batch, context, *split).total, split)
            for split in best
            if split
        ),
        default=None,
    )


def draw_map(axes: Axes, model: ModelSizes, device: Device, link: Link) -> None:
    """A cell for each batch and context: the fastest split; the darker, the more contexts."""
    for y, batch in enumerate(BATCHES):
        for x, context in enumerate(CONTEXTS):
            found = fastest_split(model, device, link, batch, context)
            if found is None:
                style.cell(axes, x, y, style.EMPTY, unused=True)
                continue
            seconds, (heads, contexts) = found
            color = style.lighter(style.Q, {1: 0.9, 2: 0.65, 4: 0.35}.get(contexts, 0))
            style.cell(axes, x, y, color)
            text = f"{heads}×{contexts}\n{1e3 * seconds:.0f} ms"
            ink = style.ink_on(color)
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, size=8)
    axes.set_xlim(0, len(CONTEXTS))
    axes.set_ylim(0, len(BATCHES))
    axes.set_xticks([x + 0.5 for x in range(len(CONTEXTS))], map(tokens_in_words, CONTEXTS))
    axes.set_yticks([y + 0.5 for y in range(len(BATCHES))], [str(batch) for batch in BATCHES])
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


@style.styled
def draw_best(
    model: ModelSizes = LLAMA_3_1_70B,
    device: Device = H100,
    links: tuple[Link, Link] = (NVLINK_4, INFINIBAND_NDR),
) -> Figure:
    """Which heads × contexts is the fastest on up to 64 devices, over two links."""
    short = [fastest_split(model, device, link, *SHORT) for link in links]
    large = [fastest_split(model, device, link, 64, 2**17) for link in links]
    heads = [split[0] for _, split in short]
    contexts = sorted({split[1] for _, split in large})
    figure, panels = style.new_figure(
        f"A short context is fastest with {heads[0]} devices on {links[0].name} and with "
        f"{heads[1]} on {links[1].name};\nthe more tokens there are to read, the more devices "
        f"divide the contexts, up to {contexts[-1]}",
        3.3,
        ncols=2,
        sharey=True,
    )
    for axes, link in zip(panels, links, strict=True):
        words = "heads × contexts" if axes is panels[0] else "hatched: does not fit"
        axes.set_title(f"{link.name}; {words}", weight="normal")
        draw_map(axes, model, device, link)
        axes.set_xlabel(f"tokens of each sequence ({model.name}, {device.name})")
    panels[0].set_ylabel("sequences")
    return figure


# Users over devices -----------------------------------------------------------------------------


def most_users(
    model: ModelSizes, device: Device, num_devices: int, context: int, shared: int
) -> int:
    """Of all splits of the devices."""
    return max(
        num_users(model, device, context, shared, heads, contexts)
        for heads, contexts in splits(model, num_devices)
    )


@style.styled
def draw_users(
    model: ModelSizes = LLAMA_3_1_70B,
    device: Device = H100,
    context: int = 8192,
    shared: int = 6144,
) -> Figure:
    """Sequences at once over 1 to 64 devices, with and without a shared prefix."""
    ways = {
        ("heads only", 0): [num_users(model, device, context, heads=n) for n in COUNTS],
        ("heads only", shared): [num_users(model, device, context, shared, n) for n in COUNTS],
        ("heads × contexts", 0): [most_users(model, device, n, context, 0) for n in COUNTS],
        ("heads × contexts", shared): [
            most_users(model, device, n, context, shared) for n in COUNTS
        ],
    }
    alone = num_users(model, device, context, heads=model.num_kv_heads)
    gain = num_users(model, device, context, shared, model.num_kv_heads) / alone
    models = COUNTS[-1] // model.num_kv_heads
    figure, axes = style.new_figure(
        f"A shared prefix of {shared:,} of {context:,} tokens lets {gain:.1f} times as many users "
        f"in;\nbeyond {model.num_kv_heads} devices, dividing heads alone adds copies of K and V "
        "and hardly a user",
        3.6,
    )
    for (way, prefix), users in ways.items():
        color = style.Q if "contexts" in way else style.INK
        points = [(n, number) for n, number in zip(COUNTS, users, strict=True) if number]
        text = f"{way}, {'prefix shared' if prefix else 'nothing shared'}: {users[-1]:,}"
        axes.plot(*zip(*points, strict=True), "--" if prefix else "-", color=color, linewidth=1.8)
        rise = -6 if way == "heads only" and prefix else 8
        axes.annotate(text, points[-1], xytext=(6, rise), textcoords="offset points", va="center",
                      color=color, annotation_clip=False)  # fmt: skip
    below = f"({models} models on {model.num_kv_heads} devices each: {models * alone:,})"
    height = ways["heads × contexts", 0][-1]
    axes.annotate(below, (COUNTS[-1], height), xytext=(6, -4), textcoords="offset points",
                  va="center", color=style.QUIET, annotation_clip=False)  # fmt: skip
    axes.set_yscale("log")
    count_axis(axes, COUNTS)
    axes.set_xlabel(f"devices ({model.name}, {device.name})")
    axes.set_ylabel(f"users with {context:,} tokens")
    axes.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    return figure
