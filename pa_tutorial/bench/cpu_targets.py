"""What the CPU kernel has to reach: ratios of two times of the same run, medians of five runs."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from tqdm import tqdm

from pa_tutorial.bench.cpu_decode import READ
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, reading
from pa_tutorial.bench.cpu_peers import Step, peers
from pa_tutorial.bench.cpu_shapes import B1, DTYPES, GQA, S1, Shape, small
from pa_tutorial.bench.cpu_stages import cpu
from pa_tutorial.bench.timing import interleaved

RUNS = 5
SLACK = 0.1  # how far a ratio may miss, as a part of it
Times = Mapping[str, Mapping[str, float]]  # of `interleaved`

CPU = ("cpu",)
SDPA = ("sdpa", "sdpa_rows")
CONTIGUOUS = (*SDPA, "matmul")
OWN = ("gather_own_sdpa", "gather_own_matmul")
ANY = (*OWN, "gather_heads_sdpa", "gather_heads_matmul", "gather_tokens_sdpa")


@dataclass(frozen=True)
class Target:
    """The fastest of some functions, divided by the fastest of others.

    limit     what the ratio has to reach; None: it is recorded, and nothing is asked
    at_least  whether the ratio may be larger than the limit, or smaller
    """

    name: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    limit: float | None = None
    at_least: bool = True

    def ratio(self, times: Times) -> float:
        return fastest(times, self.above) / fastest(times, self.below)

    def is_reached(self, ratio: float) -> bool | None:
        if self.limit is None:
            return None
        if self.at_least:
            return ratio >= self.limit * (1 - SLACK)
        return ratio <= self.limit * (1 + SLACK)

    def row(self, shape: Shape, runs: Iterable[Times]) -> dict[str, object]:
        """For the JSON file: the median of the ratios of all runs, and whether it is enough."""
        ratios = [self.ratio(times) for times in runs]
        ratio = statistics.median(ratios)
        return {
            "name": self.name,
            "shape": shape.as_row(),
            "ratio": round(ratio, 3),
            "must_reach": self.limit,
            "at_least": self.at_least,
            "reached": self.is_reached(ratio),
            "five_runs": [round(each, 3) for each in ratios],
        }


def fastest(times: Times, names: Iterable[str]) -> float:
    """The smallest median of those that were measured, in milliseconds."""
    return min(times[name]["median_ms"] for name in names if name in times)


def targets_of(shape: Shape) -> tuple[Target, ...]:
    """What is asked of the kernel on one of the main shapes, and what is recorded beside it."""
    wide = shape.dtype == torch.float32
    recorded = (
        Target("part of the read bandwidth", (READ,), CPU),
        Target("time against the best on contiguous K and V", CPU, CONTIGUOUS),
    )
    sdpa = "time against SDPA on contiguous K and V"
    own = "times as fast as the best gather from its own layout"
    best = "times as fast as the best gather from any layout"
    asked: dict[str, tuple[Target, ...]] = {
        "S1": (
            Target(sdpa, CPU, SDPA, 1.2 if wide else None, at_least=False),
            Target(own, OWN, CPU, 5.0),
            Target(best, ANY, CPU, 2.7 if wide else 2.3),
        ),
        "GQA": (
            Target(sdpa, CPU, SDPA, at_least=False),
            Target(own, OWN, CPU, 4.0 if wide else 2.5),
            Target(best, ANY, CPU),
        ),
        "B1": (
            Target(sdpa, CPU, SDPA, 1.1, at_least=False),
            Target(own, OWN, CPU),
            Target(best, ANY, CPU),
        ),
    }
    return asked[shape.name] + recorded


MIXED = Target("bandwidth of mixed lengths against equal ones", ("equal",), ("mixed",), 0.9)
# 64 to 4096 tokens, in no order, as requests come; 2080 on average.
MIXED_LENGTHS = (2080, 64, 4096, 1072, 3584, 576, 2576, 1584, 3088)


def mixed_and_equal(shape: Shape) -> tuple[Shape, Shape]:
    """Two batches with the same bytes, one of them with mixed lengths."""
    mean = sum(MIXED_LENGTHS) // len(MIXED_LENGTHS)
    lengths = {"mixed": MIXED_LENGTHS, "equal": (mean,) * len(MIXED_LENGTHS)}
    mixed, equal = (
        Shape(name, lens, shape.num_heads, shape.num_kv_heads, shape.head_size, shape.dtype)
        for name, lens in lengths.items()
    )
    return mixed, equal


@dataclass(frozen=True)
class Group:
    """Targets whose times are measured together.

    steps  seed -> what is to be timed, over fresh random numbers
    """

    shape: Shape
    targets: tuple[Target, ...]
    steps: Callable[[int], Mapping[str, Step]]

    def rows(self, runs: Iterable[Times]) -> list[dict[str, object]]:
        runs = list(runs)
        return [target.row(self.shape, runs) for target in self.targets]


def main_group(shape: Shape) -> Group:
    """The kernel, its peers and the read bound on one shape."""

    def steps(seed: int) -> dict[str, Step]:
        batch = Batch(shape, seed)
        return {READ: reading(batch), "cpu": cpu(batch)} | peers(batch)

    return Group(shape, targets_of(shape), steps)


def mixed_group(mixed: Shape, equal: Shape) -> Group:
    """The kernel on mixed and on equal lengths, with the same bytes of K and V."""

    def steps(seed: int) -> dict[str, Step]:
        return {shape.name: cpu(Batch(shape, seed)) for shape in (mixed, equal)}

    return Group(mixed, (MIXED,), steps)


def groups() -> list[Group]:
    """All that must be reached."""
    main = [main_group(shape.of(dtype)) for shape in (S1, GQA, B1) for dtype in DTYPES]
    return main + [mixed_group(*mixed_and_equal(shape)) for shape in (S1, GQA)]


def smaller(group: Group) -> Group:
    """The same targets on a small shape: for a quick look."""
    return main_group(small(group.shape))


def measure(rounds: int, chosen: Iterable[Group], runs: int = RUNS) -> list[dict[str, object]]:
    """A row for each target: name, shape, ratio, must_reach, at_least, reached, five_runs.

    rounds  in each run
    """
    cold = ColdCaches()
    rows = []
    chosen = list(chosen)
    with tqdm(total=runs * len(chosen), desc="targets", unit="run") as bar:
        for group in chosen:
            times = []
            for seed in range(runs):
                bar.set_postfix_str(str(group.shape))
                times.append(interleaved(group.steps(seed), rounds, cold, seed))
                bar.update()
            rows += group.rows(times)
    return rows
