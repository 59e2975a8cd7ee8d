"""What the CPU kernel has to reach: ratios of two times of the same run, medians of five runs."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm

from pa_tutorial.bench.cpu_decode import READ, cpu
from pa_tutorial.bench.cpu_inputs import GQA, MAIN, S1, Batch, ColdCaches, Shape, reading
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.timing import interleaved, table

RUNS = 5
SLACK = 0.1  # how far a ratio may miss, as a part of it
Times = Mapping[str, Mapping[str, float]]  # of `interleaved`
Row = dict[str, object]

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

    def row(self, runs: Iterable[Times]) -> Row:
        """For the JSON file: the median of the ratios of all runs, and whether it is enough."""
        ratios = [self.ratio(times) for times in runs]
        ratio = statistics.median(ratios)
        return {
            "name": self.name,
            "ratio": round(ratio, 3),
            "must_reach": self.limit,
            "at_least": self.at_least,
            "reached": self.is_reached(ratio),
            "five_runs": [round(each, 3) for each in ratios],
        }


def fastest(times: Times, names: Iterable[str]) -> float:
    """The smallest median of those that were measured, in milliseconds."""
    return min(times[name]["median_ms"] for name in names if name in times)


# 64 to 4096 tokens, in no order, as requests come; 2080 on average.
MIXED_LENGTHS = (2080, 64, 4096, 1072, 3584, 576, 2576, 1584, 3088)
MIXED = tuple(replace(shape, name="mixed", seq_lens=MIXED_LENGTHS) for shape in (S1, GQA))


def targets_of(shape: Shape) -> tuple[Target, ...]:
    """What is asked of the kernel on one of the shapes, and what is recorded beside it."""
    if shape.name == "mixed":
        what = "bandwidth of mixed lengths against equal ones"
        return (Target(what, ("equal",), ("mixed",), 0.9),)
    wide = shape.dtype == torch.float32
    sdpa, own, best = {  # limits of the first three; None: nothing is asked
        "S1": (1.2 if wide else None, 5.0, 2.7 if wide else 2.3),
        "GQA": (None, 4.0 if wide else 2.5, None),
        "B1": (1.1, None, None),
    }[shape.name]
    return (
        Target("time against SDPA on contiguous K and V", CPU, SDPA, sdpa, at_least=False),
        Target("times as fast as the best gather from its own layout", OWN, CPU, own),
        Target("times as fast as the best gather from any layout", ANY, CPU, best),
        Target("part of the read bandwidth", (READ,), CPU),
        Target("time against the best on contiguous K and V", CPU, CONTIGUOUS),
    )


def steps_of(shape: Shape, seed: int) -> dict[str, Callable]:
    """The kernel, its peers and the read bound, over fresh random numbers; of mixed lengths the
    kernel alone, and on equal lengths with the same bytes of K and V."""
    batch = Batch(shape, seed)
    if shape.name != "mixed":
        return {READ: reading(batch), "cpu": cpu(batch)} | peers(batch)
    num_seqs = len(shape.seq_lens)
    equal = replace(shape, seq_lens=(sum(shape.seq_lens) // num_seqs,) * num_seqs)
    return {"mixed": cpu(batch), "equal": cpu(Batch(equal, seed))}


def measure(
    rounds: int, shapes: Sequence[Shape] = (*MAIN, *MIXED), runs: int = RUNS
) -> dict[str, list[Row]]:
    """rows: of each target shape and Target.row; prints a table. A third of `rounds` in a run."""
    cold, rows = ColdCaches(), []
    with tqdm(total=runs * len(shapes), desc="targets", unit="run") as bar:
        for shape in shapes:
            times = []
            for seed in range(runs):
                bar.set_postfix_str(str(shape))
                times.append(interleaved(steps_of(shape, seed), max(1, rounds // 3), cold, seed))
                bar.update()
            rows += [{"shape": shape.as_row()} | target.row(times) for target in targets_of(shape)]
    print(targets_table(rows))
    return {"rows": rows}


def targets_table(rows: Sequence[Mapping]) -> str:
    """Every target with its ratio, what is asked, and whether it is reached."""
    lines = [["target", "ratio", "asked", "reached", "runs"]]
    for row in rows:
        what = "{name}, {dtype}: ".format(**row["shape"]) if "shape" in row else ""
        limit = f"{'at least' if row['at_least'] else 'at most'} {row['must_reach']}"
        reached = {True: "yes", False: "NO", None: "-"}[row["reached"]]
        runs = f"{min(row['five_runs']):.2f} to {max(row['five_runs']):.2f}"
        limit = "-" if row["must_reach"] is None else limit
        lines.append([what + row["name"], f"{row['ratio']:.2f}", limit, reached, runs])
    return table(lines)
