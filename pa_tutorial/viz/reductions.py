"""The figures of *Softmax* and *Values* in which the warps of a thread block agree: block_max, and
the knockout of add_warps. Their numbers are those of a run."""

import ast
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.arguments import require
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import PagedBackend, v1_backend
from pa_tutorial.kernels.geometry import FLOAT_BYTES, Geometry
from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE
from pa_tutorial.kernels.sources import source_of
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, Place, arrow, board, box, note, plural, span
from pa_tutorial.viz.kernel_runs import Run, between, of_function
from pa_tutorial.viz.warps import exchanges
from simt import Trace
from simt.gpus import WARP_SIZE
from simt.trace import KINDS, SPACES

HIGH, APART = 0.28, 0.27  # inches, as all lengths here: a cell, and the arrows between two lines
Pairs = list[tuple[int, int]]
BARRIER = "cuda.syncthreads()"
NOTHING = np.finfo(np.float32).min  # -FLT_MAX: the maximum of a thread without a score


def in_turn(trace: Trace, warp: int, turn: int) -> Trace:
    """What a warp does after `turn` barriers and before the next one."""
    mine = trace.only(warp=warp)
    barriers = np.unique(mine.only(kind="barrier").records.instruction)
    turns = np.searchsorted(barriers, mine.records.instruction)
    return replace(mine, records=mine.records[turns == turn])


def rounded(value: float) -> str:
    return f"{value + 0.0:.2f}" if value > NOTHING else "-3e38"


# block_max ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maximum:
    """block_max in one thread block of a run.

    start  [threads] the largest score that each thread came with; end: what it left with
    held   [places] what red_smem holds at the first barrier
    trace  of block_max and the functions that it calls
    """

    start: np.ndarray
    end: np.ndarray
    held: np.ndarray
    trace: Trace

    def red_smem(self, kind: str, warp: int, turn: int) -> dict[int, list[int]]:
        """lane -> the places of red_smem that it reads or writes, before or after the barrier."""
        records = in_turn(self.trace, warp, turn).only(array="red_smem", kind=kind).records
        (array,) = (one for one in self.trace.arrays if one.name == "red_smem")
        found: dict[int, list[int]] = {}
        (places,) = array.indices(records.address)
        for lane, place in zip(records.lane.tolist(), places.tolist(), strict=True):
            found.setdefault(lane, []).append(place)
        return found

    def exchanges(self, warp: int, turn: int) -> list[Pairs]:
        """(lane, lane that it reads from) for each shuffle of a warp in a turn."""
        return exchanges(in_turn(self.trace, warp, turn).only(kind="shuffle"))

    def values(self, warp: int, turn: int) -> list[np.ndarray]:
        """What the lanes hold before the first shuffle of a turn and after each: [lanes].

        A trace doesn't say what lanes do with a value. If taking the larger one doesn't lead to
        what they write, or end with, only the first is returned.
        """
        of_warp = slice(warp * WARP_SIZE, (warp + 1) * WARP_SIZE)
        first = self.start[of_warp]
        if turn:
            first = np.full(WARP_SIZE, NOTHING)
            for lane, found in self.red_smem("read", warp, turn).items():
                first[lane] = self.held[found].max()
        found = [first]
        for pairs in self.exchanges(warp, turn):
            lanes, sources = np.array(pairs).T
            after = found[-1].copy()
            after[lanes] = np.maximum(after[lanes], found[-1][sources])
            found.append(after)
        written = self.red_smem("write", warp, 0)
        wanted = {lane: self.held[there] for lane, there in written.items()}
        wanted = dict(enumerate(self.end[of_warp])) if turn else wanted
        fits = all(np.all(found[-1][lane] == value) for lane, value in wanted.items())
        return found if fits else found[:1]


@cache
def maximum_of(problem: DecodeProblem, backend: PagedBackend) -> Maximum:
    """A run of block_max, for head 0. Raises ValueError if the kernel doesn't call it, or if it
    waits at no barrier."""
    launch = backend.prepare(problem.paged("vllm"))
    source = source_of(launch.namespace.block_max)
    smem, value, *_ = launch.namespace.block_max.py_func.__code__.co_varnames
    (function,) = ast.parse(source.text).body
    first = source.text.splitlines()[function.body[0].lineno - 1].strip()
    names = value, smem, "qk_max"
    report = launch.simulate(trace=0, watch=(first, BARRIER, SCORES_DONE), names=names)
    here = [s for s in report.snapshots if s.block == (0, 0, 0)]
    inside = [s for s in here if {value, smem} <= s.values.keys()]
    came = [s for s in inside if s.matches(first)]
    waits = [s for s in inside if s.matches(BARRIER)]
    require(bool(came and waits), "backend", backend.kernel, "a kernel that calls block_max")
    (left,) = (s for s in here if s.matches(SCORES_DONE))
    end, held = np.ma.filled(left["qk_max"], np.nan), np.ma.filled(waits[0][smem], np.nan)
    return Maximum(came[0][value].data, end, held, of_function(report.trace, "block_max"))


LANES = range(0, WARP_SIZE, 4)  # of a warp that are drawn: with blocks of 8, those with a score
LANE, LEFT, TOP = 0.36, 0.88, 0.62
WIDE, RED, AFTER, STEP = 0.46, 3.92, 4.66, 0.68  # of the columns to the right of the lanes


@style.styled
def draw_maximum(problem: DecodeProblem, backend: PagedBackend = v1_backend) -> Figure:
    """The maximum of a thread block, as a tournament: first in each warp, then through red_smem."""
    run = maximum_of(problem, backend)
    num_warps = len(run.start) // WARP_SIZE
    of_warps = [run.values(warp, 0) for warp in range(num_warps)]
    bottom = TOP + (HIGH + APART) * (len(of_warps[0]) - 1)
    rows = [bottom + (HIGH + APART) * warp for warp in range(num_warps)]  # of red_smem's places
    figure, axes = style.new_figure(_finding_of_maximum(run), rows[-1] + 1)
    board(axes, style.WIDTH, rows[-1] + 0.65, 0, 0)
    note(axes, LEFT, 0.12, "the largest score of every 4th lane", "left")
    for column, lane in enumerate(LANES):
        note(axes, LEFT + (column + 0.5) * LANE, TOP - 0.13, lane)
    note(axes, 0, TOP - 0.13, "lane", "left")
    _rounds_of_a_warp(axes, of_warps[0], run.exchanges(0, 0))
    written = [run.red_smem("write", warp, 0) for warp in range(num_warps)]
    used = {*chain(*(there for one in written for there in one.values()))}
    y_of = dict(zip(sorted(used), rows, strict=False))
    for warp, y in enumerate(rows):
        if warp:
            _lanes(axes, y, f"warp {warp}, before", of_warps[warp][0])
        for place in y_of.keys() & chain(*written[warp].values()):
            ends = LEFT + LANE * len(LANES), RED
            arrow(axes, *zip(ends, (y + HIGH / 2, y_of[place] + HIGH / 2), strict=True))
            box(axes, RED, y_of[place], WIDE, HIGH, style.LOGITS, rounded(run.held[place]))
    shuffles = plural(len(run.exchanges(0, 0)), "shuffle")
    words = f"warps 1 to {num_warps - 1}: the same {shuffles}"
    if len(of_warps[0]) <= len(run.exchanges(0, 0)):
        words = f"{shuffles} of each warp: not drawn"
    note(axes, LEFT, rows[-1] + HIGH + 0.2, words, "left")
    _after_the_barrier(axes, run, rows, y_of)
    return figure


def _finding_of_maximum(run: Maximum) -> str:
    largest, wrong = run.start.max(), np.flatnonzero(run.end != run.start.max())
    if len(wrong):
        title = f"The largest score is {rounded(largest)}, but in this run "
        return title + f"thread {wrong[0]} ends with {rounded(run.end[wrong[0]])}"
    before, after = (len(run.exchanges(0, turn)) for turn in (0, 1))
    more = f", and {plural(after, 'shuffle')} more" if after else ""
    return (
        f"After {plural(before, 'shuffle')} in each warp, a place in red_smem for each{more},\n"
        f"all {len(run.end)} threads know the largest score, {rounded(largest)}"
    )


def _lanes(axes: Axes, y: float, name: str, values: np.ndarray) -> None:
    note(axes, 0, y + HIGH / 2, name, "left", size=SMALL)
    for column, lane in enumerate(LANES):
        has = values[lane] > NOTHING
        color = style.lighter(style.LOGITS, 0.6) if has else style.EMPTY
        text = rounded(values[lane]) if has else ""
        box(axes, LEFT + column * LANE, y, LANE, HIGH, color, text)


def _rounds_of_a_warp(axes: Axes, rows: list[np.ndarray], pairs: list[Pairs]) -> None:
    for number, values in enumerate(rows):
        y = TOP + (HIGH + APART) * number
        _lanes(axes, y, distance(pairs[number - 1]) if number else "warp 0, before", values)
        for lane, source in pairs[number - 1] if number else ():
            if lane in LANES and source in LANES:
                xs = (LEFT + (LANES.index(one) + 0.5) * LANE for one in (source, lane))
                arrow(axes, *zip(xs, (y - APART, y), strict=True))


def distance(pairs: Pairs) -> str:
    """How far apart the lanes of a shuffle are, if that is one number."""
    apart = {abs(lane - source) for lane, source in pairs} - {0}
    sources = {source for _, source in pairs}
    if len(sources) == 1:
        return f"lane {sources.pop()}"
    return f"distance {apart.pop()}" if len(apart) == 1 else "shuffle"


def _after_the_barrier(axes: Axes, run: Maximum, rows: list[float], y_of: dict[int, float]) -> None:
    """What warp 0 reads, in its first lanes, and what they make of it.

    y_of  place of red_smem -> where it is drawn
    """
    x, pairs, reads = RED + WIDE + 0.13, run.exchanges(0, 1), run.red_smem("read", 0, 1)
    axes.plot((x, x), (rows[0] - 0.1, rows[-1] + HIGH + 0.1), color=style.QUIET, linewidth=2.5)
    note(axes, x, rows[-1] + HIGH + 0.2, "barrier")
    note(axes, RED + WIDE / 2, rows[0] - 0.2, "red_smem")
    warps = [warp for warp in range(len(rows)) if run.red_smem("read", warp, 1)]
    who = "every warp" if len(warps) == len(rows) else f"warp {', '.join(map(str, warps))}"
    note(axes, AFTER, rows[0] - 0.5, f"in {who}:", "left")
    for column, values in enumerate(run.values(0, 1)):
        left = AFTER + STEP * column
        name = distance(pairs[column - 1]).replace("distance", "dist.") if column else "reads"
        note(axes, left + WIDE / 2, rows[0] - 0.2, name)
        for lane, y in enumerate(rows):
            has = values[lane] > NOTHING or lane in reads
            color = style.lighter(style.LOGITS, 0.6) if has else style.EMPTY
            box(axes, left, y, WIDE, HIGH, color, rounded(values[lane]) if has else "")
        if column:
            lanes = dict(enumerate(rows))
            _arrows(axes, (left - STEP + WIDE, left), pairs[column - 1], lanes, rows)
        else:
            taken = [(lane, place) for lane, there in reads.items() for place in there]
            _arrows(axes, (RED + WIDE, left), taken, y_of, rows)


def _arrows(
    axes: Axes, xs: Place, pairs: Pairs, sources: dict[int, float], rows: list[float]
) -> None:
    """From where a lane reads to the lane, if both are drawn."""
    for lane, source in pairs:
        if lane < len(rows) and source in sources:
            ys = sources[source] + HIGH / 2, rows[lane] + HIGH / 2
            arrow(axes, *zip(xs, ys, strict=True))


# add_warps ----------------------------------------------------------------------------------------

CELL, BETWEEN, MARGIN = 0.46, 0.14, 0.92
ROWS_DRAWN = 12  # of all warps together
PALE_OUT = style.lighter(style.OUT, 0.5)


class Move(NamedTuple):
    """A number that a thread leaves in shared memory or adds from there: accs[j], and the place.

    turn  how many barriers the thread has met before
    """

    turn: int
    kind: str
    warp: int
    lane: int
    j: int
    place: int


@dataclass(frozen=True)
class Turn:
    """What the warps do between two barriers, and what they have when it is over.

    accs    [threads, rows of a thread]
    memory  [places] of the array that was logits; what was never written is masked
    """

    moves: list[Move]
    accs: np.ndarray
    memory: np.ma.MaskedArray


def moves_of(trace: Trace) -> list[Move]:
    """The numbers that threads leave in shared memory, or add from there to their accs.

    What a thread writes is the element of accs that it read last; what it reads goes to the one
    that it writes next.
    """
    found, last, taken, turns = [], {}, {}, Counter()
    (logits,) = (array for array in trace.arrays if array.name == "logits")
    for r in trace.records:
        kind, space, thread = KINDS[r.kind], SPACES[r.space], (int(r.warp), int(r.lane))
        item = int(r.address - (logits.address if space == "shared" else 0)) // FLOAT_BYTES
        is_accs = space == "local" and trace.arrays[r.array].name == "accs"
        if kind == "barrier":
            turns[thread] += 1
        elif space == "shared" and kind == "write" and thread in last:
            found.append(Move(turns[thread], "write", *thread, last[thread], item))
        elif space == "shared" and kind == "read":
            taken.setdefault(thread, []).append((turns[thread], item))
        elif is_accs and kind == "read":
            last[thread] = item
        elif is_accs:
            for turn, place in taken.pop(thread, ()):
                found.append(Move(turn, "read", *thread, item, place))
    return found


@cache
def knockout_of(problem: DecodeProblem, backend: PagedBackend) -> tuple[Run, list[Turn]]:
    """A run, and the turns from its mark for the rows on, for head 0; the first has no moves: it is
    what there was."""
    launch = backend.prepare(problem.paged("vllm"))
    names = "accs", "logits", *launch.namespace.add_warps.py_func.__code__.co_varnames[:2]
    report = launch.simulate(trace=0, watch=(ROWS_DONE, BARRIER, "end"), names=names)
    here = [snapshot for snapshot in report.snapshots if snapshot.block == (0, 0, 0)]
    start = next(number for number, snapshot in enumerate(here) if snapshot.matches(ROWS_DONE))
    ends = [one for one in here[start:] if BARRIER in one.code or one.line == "end"]
    moves, turns = moves_of(between(report.trace, ROWS_DONE)), []
    for number, snapshot in enumerate([here[start], *ends]):
        # In add_warps, both may have other names.
        held = [next(snapshot[n] for n in names[i::2] if n in snapshot.values) for i in (0, 1)]
        mine = [move for move in moves if move.turn == number - 1]
        turns.append(Turn(mine, np.ma.filled(held[0], np.nan), held[1]))
    return Run(backend, launch, report), turns


@style.styled
def draw_add_warps(problem: DecodeProblem, backend: PagedBackend = v1_backend) -> Figure:
    """The knockout of the warps, turn by turn: their first rows in registers, and in out_smem."""
    run, turns = knockout_of(problem, backend)
    g = run.geometry
    rows = {
        (lane, g.value_rows(lane).index(row)): row
        for row in range(max(1, ROWS_DRAWN // g.NUM_WARPS))
        for lane in reversed(range(WARP_SIZE))
        if row in g.value_rows(lane)
    }
    figure, axes = style.new_figure(_finding_of_knockout(run, turns), 1)
    picture = Knockout(axes, turns, rows)
    picture.draw()
    figure.set_figheight(picture.y + 0.4)
    board(axes, style.WIDTH, picture.y, 0, 0)
    return figure


def place_of_row(g: Geometry, row: int) -> tuple[int, int]:
    """(lane, j): the first lane that has the row, in accs[j]."""
    lane = next(lane for lane in range(WARP_SIZE) if row in g.value_rows(lane))
    return lane, g.value_rows(lane).index(row)


def _finding_of_knockout(run: Run, turns: list[Turn]) -> str:
    """Whether the warp that writes the output has the sums of all."""
    writers = run.trace.only(array="out", kind="write").records.warp
    last, num_warps = int(writers[0]) if len(writers) else 0, run.geometry.NUM_WARPS
    for row in range(run.geometry.HEAD_SIZE):
        lane, j = place_of_row(run.geometry, row)
        wanted = turns[0].accs[lane::WARP_SIZE, j].sum()
        found = turns[-1].accs[last * WARP_SIZE + lane, j]
        if not np.isclose(wanted, found, rtol=1e-4, atol=1e-6):
            words = f"The sums of all warps for row {row} are {wanted:.2f} together"
            return f"{words}, but in this run warp {last} ends with {found:.2f}"
    rounds = sum(any(move.kind == "write" for move in turn.moves) for turn in turns)
    return (
        f"In {plural(rounds, 'round')}, warp {last} gets the sums of all {num_warps} warps, "
        "through the memory that held the weights"
    )


class Knockout:
    """The picture, line by line.

    rows  (lane, j) -> the row that a lane has in accs[j], of the rows drawn
    y     where the next line begins
    """

    def __init__(self, axes: Axes, turns: list[Turn], rows: dict[tuple[int, int], int]) -> None:
        self.axes, self.turns, self.rows, self.y = axes, turns, rows, 0.05
        self.num_warps = len(turns[0].accs) // WARP_SIZE
        self.wide = CELL * len({*rows.values()})
        self.ends: dict[tuple[str, int], Place] = {}  # below a warp's registers, below a place

    def draw(self) -> None:
        first = next((n for n in range(len(self.turns)) if self.moves(n, "write")), 0)
        self.memory("logits", first, 0, style.lighter(style.LOGITS, 0.4))
        self.y += 0.3
        self.warps(self.y - 0.1)
        self.registers(0, range(self.num_warps))
        for number in range(1, len(self.turns)):
            if reads := self.moves(number, "read"):
                self.arrows(reads, number)
                self.registers(number, {move.warp for move in reads})
            if writes := self.moves(number, "write"):
                self.arrows(writes, number)
                self.memory("out_smem", number, number, PALE_OUT)
            if number < len(self.turns) - 1:
                self.barrier()

    def moves(self, number: int, kind: str) -> list[Move]:
        """Those of a turn, of the rows drawn."""
        found = self.turns[number].moves
        return [move for move in found if move.kind == kind and (move.lane, move.j) in self.rows]

    def x(self, move: Move) -> float:
        """Of its register."""
        return self.left(move.warp) + CELL * self.rows[move.lane, move.j]

    def x_of_place(self, move: Move, number: int) -> float:
        """The place stands above the register that is read into next."""
        later = (one for turn in range(number, len(self.turns)) for one in self.moves(turn, "read"))
        return self.x(next((one for one in later if one.place == move.place), move))

    def left(self, warp: int) -> float:
        """Of a warp's registers."""
        return MARGIN + (self.wide + BETWEEN) * warp

    def warps(self, y: float) -> None:
        rows = f"rows {span(sorted({*self.rows.values()}))}" if self.wide > CELL else "row 0"
        for warp in range(self.num_warps):
            note(self.axes, self.left(warp) + self.wide / 2, y, f"warp {warp}, {rows}")

    def registers(self, number: int, warps: Collection[int]) -> None:
        note(self.axes, 0, self.y + HIGH / 2, "registers", "left")
        for warp in range(self.num_warps):
            for row, (lane, j) in {row: held for held, row in self.rows.items()}.items():
                value = self.turns[number].accs[warp * WARP_SIZE + lane, j]
                drawn = (PALE_OUT, f"{value + 0.0:.2f}") if warp in warps else (style.EMPTY,)
                box(self.axes, self.left(warp) + CELL * row, self.y, CELL, HIGH, *drawn)
            if warp in warps:
                self.ends["write", warp] = self.left(warp) + self.wide / 2, self.y + HIGH
        self.y += HIGH

    def memory(self, name: str, number: int, turn: int, color: str) -> None:
        """The places that are written to in one turn, with what they hold after another."""
        note(self.axes, 0, self.y + 0.09, "place", "left")
        note(self.axes, 0, self.y + 0.17 + HIGH / 2, name, "left")
        for move in self.moves(number, "write"):
            x, value = self.x_of_place(move, number), self.turns[turn].memory[move.place]
            note(self.axes, x + CELL / 2, self.y + 0.09, move.place)
            face, text = (style.EMPTY, "") if value is np.ma.masked else (color, f"{value:.2f}")
            box(self.axes, x, self.y + 0.17, CELL, HIGH, face, text)
            self.ends["read", move.place] = x + CELL / 2, self.y + 0.17 + HIGH
        self.y += 0.17 + HIGH

    def arrows(self, moves: list[Move], number: int) -> None:
        """One for each warp, from its registers to memory or back, down to the next line."""
        pairs = []
        for warp in {move.warp for move in moves}:
            mine = [move for move in moves if move.warp == warp]
            keys = [(move.kind, move.warp if move.kind == "write" else move.place) for move in mine]
            tails = [self.ends[key] for key in keys if key in self.ends]
            heads = [self.x(m) if m.kind == "read" else self.x_of_place(m, number) for m in mine]
            if tails:
                pairs.append((np.mean(tails, axis=0), np.mean(heads) + CELL / 2))
        self.y = max([self.y, *(tail[1] + APART for tail, _ in pairs)])
        for tail, x in pairs:
            arrow(self.axes, tail, (x, self.y))

    def barrier(self) -> None:
        y = self.y + APART / 2
        self.axes.plot((MARGIN, style.WIDTH), (y, y), color=style.QUIET, linewidth=2.5, zorder=0)
        note(self.axes, 0, y, "barrier", "left")
        self.y += APART
