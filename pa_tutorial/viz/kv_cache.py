"""The figures of notebook 01: what a cache stores, and how much work it saves."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, cell, label_line


@style.styled
def draw_prefill_and_decode(prompt_len: int = 4, seq_len: int = 6) -> Figure:
    """Which key each query reads: all queries at prefill, one new query at each decode step."""
    title = (
        "A decode step has one new query, and reads the k and v of earlier tokens from the cache"
    )
    figure, panels = style.new_figure(title, 2.9, ncols=3)
    steps = [(0, prompt_len)] + [(end - 1, end) for end in range(prompt_len + 1, seq_len + 1)]
    for axes, (first, last) in zip(panels, steps, strict=True):
        board(axes, seq_len + 1.3, seq_len + 2.3, square=True)
        kind = "prefill" if first == 0 else f"decode, step {last - prompt_len}"
        axes.set_title(kind, loc="center", weight="normal")
        for row, (letter, color) in enumerate((("k", style.K), ("v", style.V))):
            for j in range(last):
                shade = color if j >= first else style.lighter(color)
                cell(axes, j + 1.2, row, shade, f"${letter}_{j}$")
        for row, i in enumerate(range(first, last), start=2):
            cell(axes, 0, row + 0.2, style.Q, f"$q_{i}$")
            for j in range(last):
                cell(axes, j + 1.2, row + 0.2, style.EMPTY if j > i else style.LOGITS)
        nouns = "query, key and value" if last - first == 1 else "queries, keys and values"
        light = f"faint: {first} k and v from the cache"
        cached = light if first else "pink: weights; grey: masked"
        axes.text(0, last - first + 2.5, f"new: {last - first} {nouns}\n{cached}", va="top")
    return figure


@style.styled
def draw_work_per_token(recompute: Sequence[int], cached: Sequence[int]) -> Figure:
    """Counted operations for each next token: two lists from flops_per_token."""
    num_tokens = len(cached)
    title = f"At token {num_tokens}, recomputing is {recompute[-1] / cached[-1]:.0f} times the work"
    figure, axes = style.new_figure(title, 2.6)
    lines = ((recompute, "recomputing", style.QUIET), (cached, "with the cache", style.INK))
    for counts, name, color in lines:
        millions = [count / 1e6 for count in counts]
        label_line(axes, range(1, num_tokens + 1), millions, name, color)
    _scales(axes, [2**power for power in range(num_tokens.bit_length())])
    axes.set_xlim(0.95, num_tokens * 2.6)
    axes.set_xlabel("tokens in the sequence")
    axes.set_ylabel("million operations\nper new token")
    return figure


def _scales(axes: Axes, ticks: Sequence[int]) -> None:
    """Both logarithmic; the ticks are powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


# Dense 16-bit peak and memory bandwidth, from NVIDIA's data sheets: TFLOP/s, TB/s.
GPUS = {"A100 80GB": (312, 2.04), "H200": (989, 4.8)}


@style.styled
def draw_intensity(operations_and_bytes: Callable[..., tuple[int, int]]) -> Figure:
    """Operations per byte against the number of new tokens, beside what GPUs need to be busy.

    operations_and_bytes  (num_new_tokens, seq_len, num_heads, num_kv_heads, head_size), float16
    """
    seq_len = 1024
    figure, axes = style.new_figure("", 2.8)
    new_tokens = [2**power for power in range(11)]
    at_decode = []
    for num_kv_heads, rise, color in ((8, -6, style.INK), (2, 6, style.QUIET)):
        counts = [operations_and_bytes(n, seq_len, 8, num_kv_heads, 128) for n in new_tokens]
        values = [flops / num_bytes for flops, num_bytes in counts]
        at_decode.append(values[0])
        label_line(axes, new_tokens, values, f"{num_kv_heads} KV heads", color, rise)
        axes.plot(new_tokens[:1], values[:1], "o", color=color)
        place = {"xytext": (6, -3), "textcoords": "offset points", "va": "top"}
        axes.annotate(f"{values[0]:.1f}", (1, values[0]), color=color, **place)
    for gpu, (tflops, terabytes) in GPUS.items():
        axes.axhline(tflops / terabytes, color=style.QUIET, linestyle=":", linewidth=1)
        side, factor = ("bottom", 1.06) if gpu == "H200" else ("top", 0.94)
        axes.text(1, tflops / terabytes * factor, f"{gpu}: {tflops / terabytes:.0f}", va=side)
    needed = min(tflops / terabytes for tflops, terabytes in GPUS.values())
    title = f"Attention in a decode step does {at_decode[0]:.0f} to {at_decode[1]:.0f} operations "
    title += f"per byte; a GPU needs over {needed // 10 * 10:.0f}"
    figure.suptitle(title, **style.TITLE)
    _scales(axes, new_tokens)
    axes.set_xlim(0.9, seq_len * 4)
    axes.set_ylim(0.3, 2000)
    axes.set_xlabel(f"new tokens in the call, of {seq_len} tokens in all")
    axes.set_ylabel("operations per byte")
    return figure
