"""What simulating a kernel costs: against Numba's own simulator, and by size.

Numba's simulator takes over a whole process, so it runs in one of its own, which waits for the
word to run the kernel once more.
"""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
from numba import cuda, float32

from pa_tutorial.bench.timing import interleaved
from pa_tutorial.simt import CHECKS, launch

NUM_THREADS = 128
ROUNDS = 20  # of the tree reduction: 9 barriers each
HEAD_SIZE = 128


def tree_sum(out, a):
    """The sum of one number a thread, by halves, many times over. 180 barriers."""
    s = cuda.shared.array(NUM_THREADS, float32)
    t = cuda.threadIdx.x
    for _ in range(ROUNDS):
        s[t] = a[t]
        cuda.syncthreads()
        half = NUM_THREADS // 2
        while half > 0:
            if t < half:
                s[t] += s[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[0] = s[0]
        cuda.syncthreads()


def scores(out, q, k):
    """One warp a token, 4 elements a lane, a shuffle reduction: scores of one query."""
    t = cuda.threadIdx.x
    num_warps = cuda.blockDim.x // 32
    for token in range(t // 32, k.shape[1], num_warps):
        qk = float32(0)
        for i in range(t % 32, HEAD_SIZE, 32):
            qk += q[i] * k[cuda.blockIdx.x, token, i]
        half = 16
        while half > 0:
            qk += cuda.shfl_xor_sync(0xFFFFFFFF, qk, half)
            half //= 2
        if t % 32 == 0:
            out[cuda.blockIdx.x, token] = qk


def tree_arguments() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(1, np.float32), np.arange(NUM_THREADS, dtype=np.float32)


def simulated_tree(checks: tuple[str, ...], order: str) -> Callable[[], None]:
    def run() -> None:
        out, a = tree_arguments()
        launch(tree_sum, 1, NUM_THREADS, out, a, checks=checks, order=order)
        assert out[0] == a.sum()

    return run


class NumbaSimulator:
    """The same kernel in Numba's own simulator, in a process of its own."""

    def __enter__(self) -> "NumbaSimulator":
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pa_tutorial.bench.simulator"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        return self

    def __call__(self) -> None:
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer != f"{tree_arguments()[1].sum()}\n":
            raise RuntimeError(f"Numba's simulator answers {answer!r}")

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def serve() -> None:
    """In Numba's simulator: run the kernel for each line that comes in."""
    kernel = cuda.jit(tree_sum)
    for _ in sys.stdin:
        out, a = tree_arguments()
        kernel[1, NUM_THREADS](out, a)
        print(out[0], flush=True)


def against_numba(rounds: int) -> dict[str, object]:
    """The tree reduction in both simulators: times, and how many times faster ours is."""
    with NumbaSimulator() as numba_simulator:
        times = interleaved(
            {
                "numba": numba_simulator,
                "unchecked": simulated_tree((), "together"),
                "all checks": simulated_tree(CHECKS, "together"),
                "all checks, warps in turn": simulated_tree(CHECKS, "forward"),
            },
            rounds,
        )
    numba_ms = times["numba"]["median_ms"]
    ratios = {
        name: round(numba_ms / row["median_ms"], 1)
        for name, row in times.items()
        if name != "numba"
    }
    print("  tree reduction, times faster than Numba's simulator:", ratios, flush=True)
    return {"times": times, "times_faster": ratios}


def scores_of(
    num_threads: int, num_tokens: int, num_blocks: int, **options: object
) -> Callable[[], None]:
    """The scores kernel of a given size, with every check if no other options are given."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal(HEAD_SIZE, dtype=np.float32)
    k = rng.standard_normal((num_blocks, num_tokens, HEAD_SIZE), dtype=np.float32)

    def run() -> None:
        out = np.zeros(k.shape[:2], np.float32)
        launch(scores, num_blocks, num_threads, out, q, k, **options)

    return run


def by_size(rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of the scores kernel as threads, tokens and thread blocks grow."""
    sizes = {
        "threads": [(n, 2 * n, 1) for n in (32, 128, 512)],  # the same work for each
        "tokens": [(128, n, 1) for n in (128, 512, 2048)],
        "thread blocks": [(128, 128, n) for n in (1, 4, 16)],
    }
    functions = {
        f"{what} {size[i]}": scores_of(*size)
        for i, (what, rows) in enumerate(sizes.items())
        for size in rows
    }
    times = {name: row["median_ms"] for name, row in interleaved(functions, rounds).items()}
    for name, median in times.items():
        print(f"  {name:18} {median:8.1f} ms, with every check", flush=True)
    return times


def tracing(rounds: int, num_threads: int = 128, num_tokens: int = 256) -> dict[str, object]:
    """What a trace costs: of one thread block, of one among 16, and of all 16."""
    options = {
        "unchecked": {"checks": ()},
        "one traced": {"checks": (), "trace": 0},
        "all traced": {"checks": (), "trace": "all"},
        "all checks, one traced": {"trace": 0},
    }
    times = {}
    for of_blocks, num_blocks in (("one thread block", 1), ("16 thread blocks", 16)):
        functions = {
            name: scores_of(num_threads, num_tokens, num_blocks, **some)
            for name, some in options.items()
        }
        times[of_blocks] = interleaved(functions, rounds)
    ratios = {
        of_blocks: {
            name: round(row["median_ms"] / rows["unchecked"]["median_ms"], 2)
            for name, row in rows.items()
        }
        for of_blocks, rows in times.items()
    }
    for of_blocks, row in ratios.items():
        print(f"  {of_blocks}, times the unchecked run: {row}", flush=True)
    return {"times": times, "times_unchecked": ratios}


def peak_megabytes(num_threads: int = 128, num_tokens: int = 1024) -> float:
    """The most memory that a checked thread block holds while it runs."""
    run = scores_of(num_threads, num_tokens, 1)
    run()
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 1e6, 1)


def measure(rounds: int) -> dict[str, object]:
    result = {
        "against_numba": against_numba(rounds),
        "by_size_ms": by_size(rounds),
        "tracing": tracing(rounds),
        "peak_megabytes": peak_megabytes(),
    }
    print(f"  at most {result['peak_megabytes']} MB for 128 threads over 1,024 tokens")
    return result


if __name__ == "__main__":
    serve()
