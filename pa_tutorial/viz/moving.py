"""The moving picture of README and the site: notebook 00's memory, while requests arrive and grow.

An SVG that its style sheet moves, so that it also moves inside an `<img>`. Every frame paints the
pages that have changed over the frames before it. Where nothing moves, all frames are seen at once,
which shows the last one, and the loop begins with that too, so every still shows the result. Light
and dark are in the style sheet.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from pa_tutorial.paging.reservations import Blocks, Contiguous, Request, long_tailed_requests
from pa_tutorial.paging.waste import NOBODY, Kind, Server
from pa_tutorial.viz import style

# As in notebook 00.
NUM_SLOTS, PAGE, LAST_STEP = 17_089, 16, 1042
ARRIVALS = (*range(1, 9), 12, 16, 24, 32, 48, 64, 80, 100, 120)  # so many have been admitted
STEPS = (1, 10, 20, *range(40, 1040, 40), LAST_STEP)
SECONDS_PER_FRAME, SECONDS_AT_THE_END = 0.4, 5.0

COLUMNS, CELL = 32, 12  # pages in a row; pixels of a page
WIDTH, HEIGHT, PANELS, TOP = 824, 592, (8, 432), 84
TITLE = (
    "The same memory serves 8 requests when each reserves room for the longest text, and 36 in "
    "pages"
)
ARRIVING = "Requests arrive, each with a prompt"
GROWING = "When pages run out, the youngest gives its back"
ARRIVED = f"After {LAST_STEP:,} steps, the same memory serves:"
LEGEND = (
    f"a square: {PAGE} tokens · a colour: one request (with more than 8, colours repeat)",
    "full: tokens · faint: room for later tokens · hatched: reserved, never used · empty: free",
)
DARK_PAPER, DARK_INK = "#0D1117", "#E6EDF3"

Look = str  # a class of the style sheet


class Frame(NamedTuple):
    """One moment of one memory.

    looks     of each page
    running   requests that have memory
    finished  requests that have all their tokens
    """

    looks: list[Look]
    running: int
    finished: int


def look(kind: int, number: int, colors: dict[int, int]) -> Look:
    if number == NOBODY:
        return "free"
    if kind == Kind.INTERNAL:
        return "never"
    return f"{'later' if kind == Kind.RESERVED else 'token'}{colors[number]}"


def update(colors: dict[int, int], numbers: set[int]) -> None:
    """A request keeps its colour while it has memory; a new one gets the one that fewest have."""
    for number in colors.keys() - numbers:
        del colors[number]
    for number in sorted(numbers - colors.keys()):
        colors[number] = min(range(len(style.SEQUENCES)), key=[*colors.values()].count)


def frame(server: Server, colors: dict[int, int]) -> Frame:
    """A page looks as its first slot does."""
    memory, running = server.memory_map(), len(server.running)
    firsts = slice(0, NUM_SLOTS // PAGE * PAGE, PAGE)
    kinds, owners = memory.kinds[firsts].tolist(), memory.owner[firsts].tolist()
    update(colors, {*owners} - {NOBODY})
    finished = len(server.requests) - running - len(server.waiting)
    looks = [look(kind, owner, colors) for kind, owner in zip(kinds, owners, strict=True)]
    return Frame(looks, running, finished)


def frames(requests: Sequence[Request], memory: Contiguous | Blocks) -> Iterator[Frame]:
    """First the arrivals, which the server admits in its first step, then the steps."""
    colors = dict[int, int]()
    for num_admitted in ARRIVALS:
        server = Server(requests[:num_admitted], memory)
        server.step()
        yield frame(server, colors)
    server = Server(requests, memory)
    for step in range(1, LAST_STEP + 1):
        server.step()
        if step in STEPS:
            yield frame(server, colors)


def draw_moving_pages() -> str:
    requests = long_tailed_requests(400, seed=0)
    reserved = [*frames(requests, Contiguous(NUM_SLOTS, "max"))]
    paged = [*frames(requests, Blocks(NUM_SLOTS, PAGE))]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img"><title>{TITLE}</title>',
        f"<style>{style_sheet(len(paged))}</style>",
        '<pattern id="hatch" width="1" height="1" patternUnits="userSpaceOnUse">'
        '<path class="hatch" d="M-.2 1.2 1.2 -.2"/></pattern>',
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *captions(len(paged)),
        *panel(PANELS[0], "Reserved for the longest text", reserved),
        *panel(PANELS[1], f"In pages of {PAGE} tokens", paged),
        *(words(8, HEIGHT - 38 + 24 * row, text, "small") for row, text in enumerate(LEGEND)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def words(x: float, y: float, text: str, looks: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{looks}">{text}</text>'


def shown(number: int, count: int) -> str:
    """The classes of words that are seen during one frame only."""
    return f"only o{number}" + " last" * (number == count - 1)


def captions(count: int) -> Iterator[str]:
    """The story so far, above both panels."""
    steps = [0] * len(ARRIVALS) + list(STEPS)
    for number, step in enumerate(steps):
        story = ARRIVED if step == LAST_STEP else GROWING if step else ARRIVING
        yield words(8, 34, story, f"story {shown(number, count)}")
        if step in STEPS[:-1]:
            yield words(WIDTH - 8, 34, f"step {step}", f"step {shown(number, count)}")


def panel(x: int, name: str, moments: list[Frame]) -> Iterator[str]:
    """One memory: its name, its pages, and what it serves."""
    rows = -(-len(moments[0].looks) // COLUMNS)
    yield words(x, TOP - 14, name)
    yield f'<g transform="translate({x} {TOP}) scale({CELL})">'
    before: list[Look] = [""] * len(moments[0].looks)
    for number, moment in enumerate(moments):
        paths = "".join(painted(before, moment.looks))
        yield f'<g class="f{number}">{paths}</g>'
        before = moment.looks
    yield f'<path class="grid" d="{"".join(grid(len(moments[0].looks)))}"/></g>'
    y = TOP + rows * CELL + 28
    for number, moment in enumerate(moments):
        text = f"{moment.running} at once, {moment.finished} finished"
        yield words(x, y, text, f"count {shown(number, len(moments))}")


def grid(num_pages: int) -> Iterator[str]:
    """The lines around all pages. The last row ends with the last page."""
    full, rest = divmod(num_pages, COLUMNS)
    for column in range(COLUMNS + 1):
        is_longer = rest and column <= rest
        yield f"M{column} 0v{full + 1 if is_longer else full}"
    for row in range(full + 1):
        yield f"M0 {row}h{COLUMNS}"
    if rest:
        yield f"M0 {full + 1}h{rest}"


def painted(before: list[Look], after: list[Look]) -> Iterator[str]:
    """The pages that have changed: one path for each look, over one that hides what was there."""
    changed = [place for place, old in enumerate(before) if after[place] != old]
    for name in ("free", *sorted({after[place] for place in changed} - {"free"})):
        places = [place for place in changed if name in ("free", after[place])]
        yield f'<path class="{name}" d="{"".join(lines_through(places))}"/>'


def lines_through(places: list[int]) -> Iterator[str]:
    """Neighbours in a row are one line, as wide as a page."""
    runs = groupby(enumerate(places), lambda pair: (pair[1] - pair[0], pair[1] // COLUMNS))
    for _, run in runs:
        numbers = [place for _, place in run]
        row, column = divmod(numbers[0], COLUMNS)
        yield f"M{column} {row + 0.5:g}h{len(numbers)}"


def style_sheet(count: int) -> str:
    """Colours for light and dark, then when each frame appears."""
    still = (
        "text{font:20px system-ui,sans-serif;fill:var(--ink)}.step{text-anchor:end}"
        ".count,.story{font-size:23px;font-weight:700}.small{font-size:18px}"
        ".paper{fill:var(--paper)}path{stroke-width:1;fill:none}.free{stroke:var(--paper)}"
        ".never{stroke:url(#hatch)}.hatch{stroke:var(--quiet);stroke-width:.16}"
        ".grid{stroke:var(--grid);stroke-width:.08}.only{visibility:hidden}"
        ".only.last{visibility:visible}"
    )
    light = palette(style.INK, style.PAPER, style.QUIET, "#C8C8C8", 0.0)
    dark = palette(DARK_INK, DARK_PAPER, "#9198A1", "#30363D", 0.3)
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{still}"
        f"{hues()}@media(prefers-reduced-motion:no-preference){{{moves(count)}}}"
    )


def palette(ink: str, paper: str, quiet: str, grid: str, light: float) -> str:
    told = {"ink": ink, "paper": paper, "quiet": quiet, "grid": grid}
    for number, hue in enumerate(style.SEQUENCES):
        told[f"h{number}"] = style.lighter(hue, light)
    return "".join(f"--{name}:{color};" for name, color in told.items())


def hues() -> str:
    """A request's later tokens have its colour, too, but faint."""
    return "".join(
        f".token{number}{{stroke:var(--h{number})}}"
        f".later{number}{{stroke:var(--h{number});stroke-opacity:.35}}"
        for number in range(len(style.SEQUENCES))
    )


def moves(count: int) -> str:
    """When each frame appears; its words go when the next appears. The last comes first."""
    until_last = SECONDS_PER_FRAME * (count - 1)
    seconds = until_last + SECONDS_AT_THE_END
    timing = f"{seconds:g}s step-end -{until_last + SECONDS_AT_THE_END / 2:g}s infinite"
    rules = []
    for number in range(count):
        start, end = (f"{100 * SECONDS_PER_FRAME * n / seconds:.2f}%" for n in (number, number + 1))
        appear = f"0%{{visibility:hidden}}{start}{{visibility:visible}}" if number else ""
        leave = f"{end}{{visibility:hidden}}" if number < count - 1 else ""
        begin = appear or "0%{visibility:visible}"
        for kind, rule in (("f", begin), ("o", begin + leave)):
            name = f"{kind}{number}"
            rules.append(f"@keyframes {name}{{{rule}}}")
            rules.append(f".{name}{{animation:{name} {timing}}}")
    return "".join(rules)
