"""The CPU kernel with 512-bit vectors: in a process of its own, for it is compiled otherwise.

LLVM keeps to vectors of 256 bits on processors that slow down with wider ones. Two settings of
Numba, read when it is imported, allow it all that the processor has:

    NUMBA_CPU_NAME=<the processor, as llvmlite.binding.get_host_cpu_name() calls it>
    NUMBA_CPU_FEATURES=<all its features, as get_host_cpu_features() has them>,-prefer-256-bit
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable

from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

from pa_tutorial.bench.cpu_decode import READ
from pa_tutorial.bench.cpu_inputs import Batch, reading
from pa_tutorial.bench.cpu_shapes import MAIN, Shape, small
from pa_tutorial.bench.cpu_stages import cpu
from pa_tutorial.bench.cpu_targets import CPU, RUNS, Group, Target, measure

SECONDS = 240  # then the process is ended: kernels are compiled anew, some seconds each


def settings() -> dict[str, str] | None:
    """Environment variables that allow 512-bit vectors; None where the processor has none."""
    features = get_host_cpu_features()
    if not features.get("avx512f"):
        return None
    return {
        "NUMBA_CPU_NAME": get_host_cpu_name(),
        "NUMBA_CPU_FEATURES": f"{features.flatten()},-prefer-256-bit",
    }


def group(shape: Shape) -> Group:
    """The kernel against the read bound of the same process."""

    def steps(seed: int) -> dict:
        batch = Batch(shape, seed)
        return {READ: reading(batch), "cpu": cpu(batch)}

    return Group(shape, (Target("part of the read bandwidth", (READ,), CPU),), steps)


def measure_wide(rounds: int, runs: int = RUNS, quick: bool = False) -> dict[str, object]:
    """Rows as of cpu_targets.measure, under "rows"; or under "absent", in words, why none."""
    wide = settings()
    if wide is None:
        return {"absent": "this processor has no 512-bit vectors"}
    command = [sys.executable, "-m", __name__, str(rounds), str(runs), str(int(quick))]
    with tempfile.TemporaryDirectory() as folder:  # of kernels that no other process may use
        environment = {**os.environ, **wide, "NUMBA_CACHE_DIR": folder}
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, encoding="utf-8", timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"absent": f"not done after {SECONDS} seconds"}
    if done.returncode != 0:
        return {"absent": f"its process ended with {done.returncode}"}
    return {"cpu_name": wide["NUMBA_CPU_NAME"], "rows": json.loads(done.stdout)}


def shapes(quick: bool) -> Iterable[Shape]:
    return [small(MAIN[0])] if quick else MAIN


if __name__ == "__main__":
    rounds, runs, quick = map(int, sys.argv[1:])
    print(json.dumps(measure(rounds, map(group, shapes(bool(quick))), runs)))
