"""Processor time of launches of a product of matrices: of the first one, and of the later ones.

    python -m tests.kernels.launch_speed              this tree
    python -m tests.kernels.launch_speed ../other     beside another tree, in turns

Each measurement is a process of its own, so the first launch finds nothing that was parsed before
(Numba is imported). A ratio of two medians is good to about 3 %, on a busy machine, too.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
from numba import cuda, float32

import simt
from pa_tutorial.printing import print_anything

TILE = 16
PROCESSES = 5  # of each tree
LAUNCHES = 4


@cuda.jit
def matmul(c, a, b):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for i in range(a.shape[1] // TILE):
        a_tile[ty, tx] = a[y, i * TILE + tx]
        b_tile[ty, tx] = b[i * TILE + ty, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    c[y, x] = total


def measured() -> None:
    """Prints the seconds of the first launch, and the median of the others."""
    a, b = np.random.default_rng(0).random((2, 256, 256), np.float32)
    c, seconds = np.zeros_like(a), []
    for _ in range(LAUNCHES):
        start = process_time()
        simt.launch(matmul, (16, 16), (TILE, TILE), c, a, b)
        seconds.append(process_time() - start)
    print(seconds[0], median(seconds[1:]))


def in_process(tree: Path) -> tuple[float, ...]:
    """What `measured` prints in a process that imports the simulator of this tree."""
    code = f"import runpy; runpy.run_path({__file__!r})['measured']()"
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    printed = subprocess.check_output(
        [sys.executable, "-c", code], env=environment, cwd=tree, text=True
    )
    return tuple(map(float, printed.split()))


def main() -> None:
    trees = [Path(__file__).parents[2], *(Path(one).resolve() for one in sys.argv[1:])]
    runs = [[in_process(tree) for tree in trees] for _ in range(PROCESSES)]
    for tree, of_tree in zip(trees, zip(*runs, strict=True), strict=True):
        first, later = (1000 * median(seconds) for seconds in zip(*of_tree, strict=True))
        print(f"{tree}: first {first:,.0f} ms, later {later:,.0f} ms", flush=True)


if __name__ == "__main__":
    print_anything()
    main()
