"""Decode attention on this machine: every stage, its peers, and how fast memory can be read."""

from collections.abc import Iterable, Mapping

from tqdm import tqdm

from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, reading
from pa_tutorial.bench.cpu_peers import Step, peers
from pa_tutorial.bench.cpu_shapes import TINY, Shape, most_kv_bytes, that_fit
from pa_tutorial.bench.cpu_stages import NOT_ON_A_CPU, simulated_stages, stages, too_much
from pa_tutorial.bench.timing import host_milliseconds, interleaved

READ = "read"  # the time to read as many bytes once, among the times of a row
SLOWEST_MS = 500.0  # what takes longer in its first call is left out; the kernel itself never
SECONDS_A_SHAPE = 1.5  # rounds become fewer where one takes long, but not fewer than 3
LEAST_ROUNDS = 3


def fast_enough(steps: Mapping[str, Step]) -> tuple[dict[str, Step], dict[str, str]]:
    """The steps that do not take long, and why each of the others is left out."""
    kept, left_out = {}, {}
    for name, step in steps.items():
        taken = host_milliseconds(step)
        if taken <= SLOWEST_MS or name in ("cpu", READ):  # their first call compiles
            kept[name] = step
        else:
            left_out[name] = f"{taken:,.0f} ms, over {SLOWEST_MS:,.0f}"
    return kept, left_out


def affordable(steps: Mapping[str, Step], rounds: int, cold: ColdCaches) -> int:
    """How many rounds fit into SECONDS_A_SHAPE: at most those asked for."""
    a_round = sum(cold(step) + host_milliseconds(cold.flush) for step in steps.values())
    fitting = int(1e3 * SECONDS_A_SHAPE / a_round) - 1  # one round is not counted
    return min(rounds, max(LEAST_ROUNDS, fitting))


def measure(
    shape: Shape, rounds: int, cold: ColdCaches | None = None, simulated: bool = False
) -> dict[str, object]:
    """One row: the times of everything on one shape, with cold caches, interleaved.

    rounds     at most; at least 1
    simulated  whether the CUDA kernels run too, in the simulator
    returns    shape, kv_bytes, rounds; times: name -> median, lowest and highest milliseconds;
               gb_per_s: name -> bytes of K and V by the median; read_gb_per_s: of reading as many
               bytes once, in the same rounds; left_out: name -> why
    """
    cold = ColdCaches() if cold is None else cold
    batch = Batch(shape)
    steps, left_out = fast_enough({READ: reading(batch)} | stages(batch) | peers(batch))
    if simulated:
        steps |= simulated_stages(batch)
    rounds = affordable(steps, rounds, cold)
    times = interleaved(steps, rounds, cold)
    gb_per_s = {
        name: round(shape.kv_bytes / time["median_ms"] / 1e6, 4) for name, time in times.items()
    }
    return {
        "shape": shape.as_row(),
        "kv_bytes": shape.kv_bytes,
        "rounds": rounds,
        "read_gb_per_s": gb_per_s[READ],
        "times": times,
        "gb_per_s": gb_per_s,
        "left_out": NOT_ON_A_CPU | too_much(shape) | left_out,
    }


def measure_all(
    shapes: Iterable[Shape], rounds: int, most_bytes: int | None = None
) -> dict[str, object]:
    """A row for each shape that memory has room for, under a progress bar.

    most_bytes  of K and V of a shape; if it is not given, what this machine has room for
    returns     rows, and left_out: the shapes that memory has no room for, in words
    """
    fitting, left_out = that_fit(shapes, most_kv_bytes() if most_bytes is None else most_bytes)
    cold = ColdCaches()
    rows = []
    with tqdm(fitting, desc="decode", unit="shape") as bar:
        for shape in bar:
            bar.set_postfix_str(str(shape))
            rows.append(measure(shape, rounds, cold, simulated=shape == TINY))
    return {"rows": rows, "left_out": left_out}
