"""What disturbs a measurement: one decode step, timed again and again, with every time kept."""

import time

from pa_tutorial.bench.cpu_decode import cpu
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, Shape
from pa_tutorial.bench.timing import host_milliseconds

# 8 MiB of K and V: more than the caches of a core, less than the last cache of most machines
SHAPE = Shape("noise", (512,), num_heads=16, num_kv_heads=16, head_size=128)


def measure(rounds: int, shape: Shape = SHAPE) -> dict[str, object]:
    """Times of the same call, 15 a round of each kind, in the order in which they were taken.

    seconds  when each pair began, since the first
    cold_ms  after the caches were filled with something else
    warm_ms  at once again: K and V are in the caches, as far as they fit
    """
    step, cold = cpu(Batch(shape)), ColdCaches()
    step()  # compiles, or reads from disk what was compiled before
    times, start = {"seconds": [], "cold_ms": [], "warm_ms": []}, time.perf_counter()
    for _ in range(15 * rounds):
        times["seconds"].append(round(time.perf_counter() - start, 3))
        times["cold_ms"].append(round(cold(step), 4))
        times["warm_ms"].append(round(host_milliseconds(step), 4))
    for name in ("cold_ms", "warm_ms"):
        print(f"{name}: {min(times[name])} to {max(times[name])}")
    return {"shape": shape.as_row(), "kv_bytes": shape.kv_bytes, **times}
