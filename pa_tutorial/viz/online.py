"""The figures of notebook 05: online softmax token by token, parts and their merge, v1's memory."""

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.online import Part, divide, exp_from, merge_lists, one_pass
from pa_tutorial.viz import style
from pa_tutorial.walk.cases import WORKED_EXAMPLE

HEAD = 3  # of the worked example: its maximum changes early, and once more in the last block


def worked_scores_and_values(
    head: int = HEAD, num_dims: int = 2
) -> tuple[list[float], list[list[float]]]:
    """One head of the worked example: a score for each token, and the first numbers of its V."""
    inputs = WORKED_EXAMPLE.inputs()
    probe: dict = {}
    cached_attention(inputs.q, inputs.keys[0], inputs.values[0], inputs.scale, None, probe)
    kv_head = head // (WORKED_EXAMPLE.num_heads // WORKED_EXAMPLE.num_kv_heads)
    return probe["qk"][head, 0].tolist(), inputs.values[0][:, kv_head, :num_dims].tolist()


@style.styled
def draw_trail(scores: Sequence[float], values: Sequence[Sequence[float]]) -> Figure:
    """m, l and the first number of acc after each token."""
    scores = [round(score, 4) for score in scores]  # float32 differs from machine to machine
    parts = one_pass(scores, values)
    new_maximum = [j for j, score in enumerate(scores) if score > parts[j].m]
    figure, (top, middle, bottom) = style.new_figure(
        f"At tokens {' and '.join(str(j) for j in new_maximum[1:])} a new maximum comes: "
        "the old sums are multiplied",
        4.6,
        nrows=3,
        sharex=True,
    )
    tokens = range(len(scores))
    top.bar(tokens, scores, width=0.6, color=style.LOGITS)
    top.step(tokens, [part.m for part in parts[1:]], where="mid", color=style.INK, linewidth=2)
    top.text(len(scores) - 0.3, parts[-1].m, "m", va="center", weight="bold")
    top.set_ylabel("score")

    kept = [part.l * exp_from(part.m, after.m) for part, after in pairwise(parts)]
    added = [after.l - old for after, old in zip(parts[1:], kept, strict=True)]
    middle.bar(tokens, kept, width=0.6, color=style.lighter(style.QUIET, 0.5))
    middle.bar(tokens, added, width=0.6, bottom=kept, color=style.INK)
    middle.text(len(scores) - 0.3, parts[-1].l, "l", va="center", weight="bold")
    middle.text(
        0.15,
        0.95,
        "grey: old sum × factor    black: the new exp(score - m)",
        transform=middle.transAxes,
        va="top",
    )
    middle.set_ylabel("sum")

    bottom.bar(tokens, [part.acc[0] for part in parts[1:]], width=0.6, color=style.V)
    bottom.plot(tokens, [divide(part)[0] for part in parts[1:]], "o-", color=style.OUT, linewidth=1)
    bottom.text(len(scores) - 0.3, parts[-1].acc[0], "acc", va="center", weight="bold")
    bottom.text(len(scores) - 0.3, divide(parts[-1])[0], "acc / l", va="center", color=style.INK)
    bottom.set_ylabel("dimension 0")
    bottom.set_xlabel("token")
    bottom.set_xticks(tokens)
    bottom.set_xlim(-0.7, len(scores) + 0.8)
    for axes in (top, bottom):
        axes.axhline(0, color=style.QUIET, linewidth=0.8)
    for j in new_maximum[1:]:
        factor = exp_from(parts[j].m, parts[j + 1].m)
        for axes in (middle, bottom):
            axes.axvline(j - 0.5, color=style.INK, linewidth=1, linestyle=":")
        behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}
        place = (j - 0.5, 1.15 * parts[-1].l)
        middle.text(*place, f"× {factor:.2f}", ha="center", va="center", bbox=behind)
    middle.set_ylim(0, 1.3 * parts[-1].l)
    return figure


@style.styled
def draw_merge(
    scores: Sequence[float], values: Sequence[Sequence[float]], cuts: Sequence[int]
) -> Figure:
    """The tokens cut into pieces, the part of each piece, and the parts merged one by one."""
    ends = [*cuts, len(scores)]
    pieces = list(zip([0, *cuts], ends, strict=True))
    parts = [one_pass(scores[a:b], values[a:b])[-1] for a, b in pieces]
    whole = parts[0]
    for part in parts[1:]:
        whole = merge_lists(whole, part)
    figure, axes = style.new_figure(
        "Each piece is attended alone; merged, the parts give the output of all tokens", 3.7
    )
    width = 1.35 * len(scores) + 1.2 * len(cuts)
    axes.set_xlim(-0.2, width)
    axes.set_ylim(7.4, -0.9)
    axes.axis("off")
    middles = []
    for index, (start, end) in enumerate(pieces):
        x = 1.35 * start + 1.2 * index
        for j in range(start, end):
            _score_cell(axes, x + 1.35 * (j - start), j, scores[j])
        middle = x + 1.35 * (end - start) / 2
        middles.append(min(middle, width - 3.6))
        _part_box(axes, middles[-1], 2.1, parts[index], f"part of tokens {start} to {end - 1}")
        _arrow(axes, (middle, 1.05), (middles[-1], 1.95))
    center = width / 2
    _part_box(axes, center, 5.3, whole, f"part of tokens 0 to {len(scores) - 1}")
    for middle, part in zip(middles, parts, strict=True):
        _arrow(axes, (middle, 4.05), (center, 5.2))
        factor = exp_from(part.m, whole.m)
        place = ((middle + center) / 2, 4.5)
        behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}
        axes.text(*place, f"× {factor:.2f}", ha="center", va="center", bbox=behind)
    out = ", ".join(f"{x:.2f}" for x in divide(whole))
    axes.text(center + 4.3, 6.2, f"out = acc / l\n= {out}, …", va="center")
    return figure


def _score_cell(axes: Axes, x: float, j: int, score: float) -> None:
    style.add(
        axes,
        Rectangle((x, 0), 1.3, 1, facecolor=style.lighter(style.LOGITS, 0.5), edgecolor="none"),
    )
    axes.text(x + 0.65, 0.5, f"{score:.2f}", ha="center", va="center", fontsize=7.5)
    axes.text(x + 0.65, -0.4, str(j), ha="center", va="center", color=style.QUIET, fontsize=7.5)


def _part_box(axes: Axes, center: float, y: float, part: Part, caption: str) -> None:
    """m, l and acc of a part; 7 wide."""
    style.add(
        axes,
        FancyBboxPatch(
            (center - 3.4, y),
            6.8,
            1.9,
            boxstyle="round,pad=0,rounding_size=0.25",
            facecolor=style.EMPTY,
            edgecolor=style.INK,
        ),
    )
    acc = ", ".join(f"{x:.2f}" for x in part.acc)
    axes.text(center, y + 0.5, caption, ha="center", va="center", weight="bold", fontsize=8)
    axes.text(center, y + 1.0, f"m {part.m:.2f}    l {part.l:.2f}", ha="center", va="center")
    axes.text(center, y + 1.5, f"acc {acc}, …", ha="center", va="center")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style.add(
        axes,
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=10, color=style.INK, shrinkA=0, shrinkB=0
        ),
    )


# Shared memory that one thread block may ask for, in bytes: NVIDIA's CUDA programming guide.
SHARED_MEMORY = {"T4": 64 * 1024, "A100": 163 * 1024}
LONGEST_FOR_V1 = 8192  # vLLM, PagedAttention.forward_decode in vllm/attention/ops/paged_attn.py


@style.styled
def draw_shared_memory(partition_size: int = 512) -> Figure:
    """Bytes of logits that a thread block of vLLM's v1 holds, against those of v2."""
    lens = [2**power for power in range(9, 18)]
    figure, axes = style.new_figure(
        f"v1 keeps one logit a token, so a GPU limits the length; v2 keeps {partition_size}",
        2.7,
    )
    chosen = [seq_len for seq_len in lens if seq_len <= LONGEST_FOR_V1]
    kib = [4 * seq_len / 1024 for seq_len in lens]
    axes.plot(chosen, kib[: len(chosen)], color=style.LOGITS, linewidth=2)
    axes.plot(lens, kib, color=style.LOGITS, linewidth=1, linestyle=":")
    axes.plot(chosen[-1:], kib[len(chosen) - 1 : len(chosen)], "o", color=style.LOGITS)
    axes.text(
        chosen[-1] * 1.15, 26, f"above {LONGEST_FOR_V1:,} tokens vLLM always takes v2", va="top"
    )
    axes.text(lens[-1] * 1.1, kib[-1], "v1: all tokens", va="center", color=style.LOGITS)
    v2 = [4 * partition_size / 1024] * len(lens)
    style.label_line(axes, lens, v2, f"v2: {partition_size} tokens", style.INK)
    for gpu, num_bytes in SHARED_MEMORY.items():
        axes.axhline(num_bytes / 1024, color=style.QUIET, linewidth=0.8, linestyle="--")
        text = f"{gpu}: {num_bytes // 1024} KiB, room for {num_bytes // 4:,} tokens"
        axes.text(lens[0], num_bytes / 1024 * 1.03, text, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lens, [f"{n:,}" for n in lens])
    axes.set_yticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
    axes.set_xlim(lens[0] * 0.9, lens[-1] * 3.6)
    axes.set_xlabel("tokens of the longest sequence")
    axes.set_ylabel("KiB of shared memory\nfor logits")
    axes.minorticks_off()
    return figure


def draw_worked_trail() -> Figure:
    return draw_trail(*worked_scores_and_values())


def draw_worked_merge() -> Figure:
    return draw_merge(*worked_scores_and_values(), cuts=[WORKED_EXAMPLE.block_size])
