"""What the compiler makes of the kernel's versions, drawn from its own words."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pa_tutorial.kernels.comparison import Row
from pa_tutorial.kernels.evidence import GEOMETRY, rows
from pa_tutorial.simt.gpus import H100
from pa_tutorial.viz import style

SHADES = {2: 0.75, 4: 0.55, 8: 0.3, 16: 0.0}  # bytes of a load -> how light its bar is


def resident(registers: int) -> int:
    """Thread blocks of the kernel that run on a multiprocessor of an H100 at the same time."""
    shared_bytes = GEOMETRY.static_shared_bytes + GEOMETRY.dynamic_shared_bytes(1024)
    return min(H100.resident_blocks(GEOMETRY.NUM_THREADS, registers, shared_bytes).values())


@style.styled
def draw_compiled(versions: Sequence[Row]) -> Figure:
    """Registers at the left, with the thread blocks that fit; loads by their width at the right."""
    by_element, *_ = versions
    bare, unsigned = (row for row in versions if row.name.startswith("vector"))
    figure, (left, right) = style.new_figure(
        f"One cast: {bare.registers} registers become {unsigned.registers}. "
        f"Vector loads: {_loads(by_element)} load instructions become {_loads(unsigned)}",
        1.15 + 0.42 * len(versions),
        ncols=2,
    )
    for y, row in enumerate(versions):
        left.barh(y, row.registers, 0.6, color=style.QUIET)
        words = f"{row.registers} ({resident(row.registers)} thread blocks)"
        _after(left, row.registers, y, words)
        _widths(right, y, row.global_loads)
    left.set_title("registers\n(thread blocks that fit on a multiprocessor)", weight="normal")
    right.set_title("loads from global memory:\ncount × bytes", weight="normal")
    names = [f"{num_bytes} bytes" for num_bytes in SHADES]
    right.legend(
        [Patch(color=_shade(num_bytes)) for num_bytes in SHADES],
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=len(SHADES),
        handlelength=1,
        handletextpad=0.4,
        columnspacing=1,
        frameon=False,
    )
    left.set_xlim(0, 1.6 * max(row.registers for row in versions))
    right.set_xlim(0, 1.5 * max(map(_loads, versions)))
    left.set_yticks(range(len(versions)), [row.name.replace(", ", ",\n") for row in versions])
    right.set_yticks([])
    for axes in (left, right):
        axes.set_ylim(len(versions) - 0.5, -0.5)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _shade(num_bytes: int) -> str:
    return style.lighter(style.INK, SHADES[num_bytes])


def _loads(row: Row) -> int:
    return sum(row.global_loads.values())


def _widths(axes: Axes, y: float, loads: dict[int, int]) -> None:
    """One bar, its parts from narrow to wide loads."""
    x = 0
    for num_bytes, count in sorted(loads.items()):
        axes.barh(y, count, 0.6, left=x, color=_shade(num_bytes))
        x += count
    words = ", ".join(f"{count} × {num_bytes}" for num_bytes, count in sorted(loads.items()))
    _after(axes, x, y, words)


def _after(axes: Axes, x: float, y: float, words: str) -> None:
    axes.annotate(words, (x, y), (3, 0), textcoords="offset points", va="center")


def draw_reference_compiled() -> Figure:
    return draw_compiled(rows())
