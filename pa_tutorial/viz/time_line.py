"""What became of vLLM's paged attention kernel: dates, what happened, and where that is written."""

from dataclasses import dataclass
from datetime import date

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style

READ_ON = date(2026, 11, 22)
DATE, WHAT, SOURCE = 0.62, 1.55, 6.55  # where the columns begin
HEAD = -0.2  # the row of their names


@dataclass(frozen=True)
class Event:
    """One event.

    shown   the date as far as it is known
    place   where it stands on the line: that day, or the middle of the month
    kernel  whether it is about the CUDA kernel itself
    source  where it was read
    """

    shown: str
    place: date
    what: str
    source: str
    kernel: bool = False


def _day(text: str, *rest: str, kernel: bool = False) -> Event:
    return Event(text, date.fromisoformat(text), *rest, kernel=kernel)


# All PRs are of vllm-project/vllm; the date of a PR is the day on which it was opened. #3648 was
# opened on 2024-03-26, taken out again, and put back by #4907.
EVENTS = (
    _day("2023-06-20", "vLLM is announced, with PagedAttention", "blog of vLLM", kernel=True),
    _day("2023-10-13", "v2: partitions and a reduce kernel", "PR #1348, merged", kernel=True),
    _day("2024-05-07", "DeepSeek-V2: a latent cache (MLA)", "arXiv:2405.04434"),
    _day("2024-05-19", "V0 decodes with FlashAttention on A100 and newer",
         "PRs #3648, #4907, merged", kernel=True),
    _day("2025-01-27", "vLLM V1: one scheduler, append-only tables", "blog of vLLM"),
    Event("2025-03", date(2025, 3, 15), "v0.8.0: V1, without this kernel, is the default",
          "release notes, PR #15353", kernel=True),
    Event("2025-04", date(2025, 4, 15), "one Triton kernel for prefill and decode",
          "PR #16828, merged"),
    _day("2025-06-04", "the same with split-KV: segments and a reduce kernel",
         "PR #19152, merged"),
    _day("2025-09-21", "V0's attention backends, its callers, are removed",
         "PR #25351, merged", kernel=True),
    _day("2026-05-26", "the kernel's files move to a new folder: it is still there",
         "PR #43717, merged", kernel=True),
    _day("2026-07-11", "v0.25.0: the kernel is removed", "release notes, PR #47361", kernel=True),
    _day("2026-09-01", "its document still says that it is in use, below a banner",
         "PR #54737, open", kernel=True),
)  # fmt: skip


def _position(day: date) -> float:
    """Years since the beginning of 2023."""
    return (day - date(2023, 1, 1)).days / 365.25


@style.styled
def draw_time_line(events: tuple[Event, ...] = EVENTS) -> Figure:
    """Left the years, to scale; right the events, one below the other."""
    born = next(event for event in events if "v2" in event.what)
    gone = next(event for event in events if "removed" in event.what and "v0.25" in event.what)
    years = (gone.place - born.place).days / 365.25
    figure, axes = style.new_figure(
        f"From v2 of the kernel to its removal from vLLM's CUDA build: {years:.1f} years\n"
        "(a dot stands at the date; that of a PR is the day on which it was opened)",
        4.5,
    )
    end = 4.0  # the end of 2026
    step = end / len(events)
    _draw_years(axes, end)
    for row, event in enumerate(events):
        y, where = (row + 0.5) * step, _position(event.place)
        color = style.K if event.kernel else style.QUIET
        axes.plot((0, 0.55), (where, y), color=color, linewidth=0.8)
        axes.plot(0, where, "o", ms=5, color=color, zorder=3)
        axes.text(DATE, y, event.shown, va="center", size=8)
        axes.text(WHAT, y, event.what, va="center", size=8)
        axes.text(SOURCE, y, event.source, va="center", size=8)
    for x, words in ((DATE, "date"), (WHAT, "event"), (SOURCE, "source")):
        axes.text(x, HEAD, words, va="center", size=8, weight="bold")
    axes.set_xlim(-0.75, 8.9)
    axes.set_ylim(end, 1.5 * HEAD)
    axes.axis("off")
    return figure


def _draw_years(axes: Axes, end: float) -> None:
    axes.plot((0, 0), (0, end), color=style.INK, linewidth=1.5)
    for year in range(int(end) + 1):
        axes.plot((-0.06, 0), (year, year), color=style.INK, linewidth=1)
        axes.text(-0.1, year, f"Jan {2023 + year}", ha="right", va="center", size=8)
