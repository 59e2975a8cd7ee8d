"""Which thread reads or writes which element: of a reader's function, beside the right one."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from pa_tutorial.simt import Trace
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, write
from pa_tutorial.viz.style import EMPTY, K

COLUMNS, MOST = 32, 64  # cells per line, and in all
LABEL = 4  # columns to the left of the cells


def owners(trace: Trace, start: int, count: int) -> dict[int, list[int]]:
    """element, counted from an address -> the threads that touch it."""
    size = trace.arrays[trace.records.array[0]].dtype.itemsize
    found: dict[int, list[int]] = {}
    for address, num_bytes, thread in zip(
        trace.records.address, trace.records.num_bytes, trace.threads, strict=True
    ):
        first = int(address - start) // size
        for element in range(first, first + int(num_bytes) // size):
            if 0 <= element < count and int(thread) not in found.setdefault(element, []):
                found[element].append(int(thread))
    return found


@style.styled
def draw_accesses(traces: Mapping[str, Trace], what: str) -> Figure:
    """The first 64 elements from the lowest address of the last trace on, in memory order.

    traces  words -> accesses of one array; the last are the right ones
    what    "read k_cache"
    """
    *_, right = traces.values()
    start = int(right.records.address.min())
    size = right.arrays[right.records.array[0]].dtype.itemsize
    count = min(MOST, int(right.records.address.max() - start) // size + 1)
    lines = -(-count // COLUMNS)
    kind, array = what.split()
    title = f"Which threads {kind} the first {count} elements of {array}: yours, and the right ones"
    figure, axes = style.new_figure(title, 0.35 + len(traces) * (0.24 * lines + 0.12))
    board(axes, LABEL + COLUMNS, len(traces) * (lines + 0.5))
    for row, (words, trace) in enumerate(traces.items()):
        top = row * (lines + 0.5)
        write(axes, LABEL - 0.5, top + 0.5, words, "right")
        threads = owners(trace, start, count)
        for element in range(count):
            draw_element(axes, element, top, threads.get(element, []))
    return figure


def draw_element(axes: object, element: int, top: float, threads: list[int]) -> None:
    """The first thread that touches it; + if there are more; empty if there is none."""
    x, y = LABEL + element % COLUMNS, top + element // COLUMNS
    if not threads:
        box(axes, x, y, 1, 1, EMPTY)
        return
    shade = (K, "#F7D9A0")[threads[0] % 2]
    more = "+" if len(threads) > 1 else ""
    box(axes, x, y, 1, 1, shade, f"{threads[0]}{more}", SMALL - 1)
