"""Time the kernels on this machine's GPU, beside torch's SDPA and a copy: `make gpu`.

Runs from the working tree with the packages that python3 has, and writes benchmarks/<gpu>.json. A
decode step must read K and V once, and can't be faster than the memory. So its bytes per second are
compared with the bytes per second that a plain copy reads and writes in the same rounds.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path

import torch

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.bench.cpu_inputs import Batch, Shape, Step
from pa_tutorial.bench.cpu_peers import sdpa
from pa_tutorial.bench.timing import RESULTS, interleaved, write_results
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.exercises.my_kernel import KERNELS, load
from pa_tutorial.kernels.cuda_backends import CudaBackend
from pa_tutorial.kernels.sources import KernelFileError
from pa_tutorial.kernels.triton.backend import triton_backend, why_absent
from pa_tutorial.printing import print_anything

LARGE = {"num_heads": 32, "num_kv_heads": 32, "head_size": 128, "dtype": torch.float16}
SHAPES = (
    *(Shape("grid", (n,) * seqs, **LARGE) for seqs in (1, 8, 64) for n in (512, 4096)),
    Shape("long", (32_768,), **LARGE),
    Shape("gqa", (4096,) * 64, **LARGE | {"num_kv_heads": 8}),
    Shape("bfloat16", (4096,) * 64, **LARGE | {"dtype": torch.bfloat16}),
)
MY_KERNEL = Path("notebooks/my_kernel")  # where the notebooks save it
COPIES = 8  # of K and V: the pool in two layouts, contiguous, the copy, and some room
LARGEST_ERROR = 2e-2  # relative, because outputs are rounded to 16 bits, twice in v2
# Settings that don't change the result: tokens per iteration, warps per program, tokens per
# program; with 5 stages, loads for later iterations start earlier.
TRITON = {
    "triton": {},
    "triton 5 stages": {"num_stages": 5},
    "triton tile 16": {"tile_size": 16, "num_warps": 2},
    "triton tile 64": {"tile_size": 64, "num_warps": 8},
    "triton partition 256": {"partition_size": 256, "num_stages": 5},
}


class ColdL2:
    """Times one call with CUDA events, after filling the L2 cache with other data."""

    def __init__(self) -> None:
        # Many times L2, so that writing it takes longer than the host needs for a launch.
        self.memory = torch.empty(2**30, dtype=torch.int8, device="cuda")

    def __call__(self, function: Callable[[], object]) -> float:
        """Milliseconds; the host launches the timed call while the memory is being written."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.memory.zero_()
        start.record()
        function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


@cache
def my_kernels(folder: Path = MY_KERNEL) -> dict[str, CudaBackend]:
    """name -> a kernel in a reader's my_kernel; empty if there is no such folder."""
    found = {}
    for stage, name in KERNELS.items() if folder.exists() else ():
        try:
            found[f"my {stage}"] = load(folder, name)
        except KernelFileError as error:
            print(error)
    return found


def makers(batch: Batch) -> dict[str, Callable[[], Step]]:
    """name -> a function that prepares a decode step for this kernel."""
    vllm, plain = DecodeStep(*batch.vllm_arguments), DecodeStep(*batch.arguments)
    longest = {"max_seq_len": max(batch.shape.seq_lens)}
    found = {
        name: lambda name=name: backend_named(name).prepare(vllm, **longest).run
        for name in ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2")
    }
    found |= {
        "paged_gather": lambda: partial(paged_gather, *batch.arguments),
        "sdpa": lambda: partial(sdpa, batch.q, *batch.contiguous),
    }
    for name, kernel in my_kernels().items() if batch.q.is_cuda else ():
        found[name] = lambda k=kernel: k.prepare(vllm, **longest).run
    for name, sizes in TRITON.items() if why_absent() is None else ():
        found[name] = lambda s=sizes: triton_backend.prepare(plain, **longest, **s).run
    return found


def steps(batch: Batch) -> tuple[dict[str, Step], dict[str, str]]:
    """name -> one prepared decode step; and name -> why a kernel is left out."""
    why = why_absent()
    made, left_out = {}, {} if why is None else {"triton": why}
    for name, make in makers(batch).items():
        try:
            made[name] = make()
        except ValueError as refused:  # v1: more tokens than fit into shared memory
            left_out[name] = str(refused)
    return made, left_out


def why_wrong(timed: Mapping[str, Step]) -> dict[str, str]:
    """name -> why it must not be timed: it fails, or its result differs from sdpa's."""
    expected, wrong = timed["sdpa"]().double(), {}
    for name, step in timed.items():
        try:
            error = float((step().double() - expected).norm() / expected.norm())
        except Exception as failed:  # the others are still timed
            wrong[name] = f"{type(failed).__name__}: {failed}".splitlines()[0]
        else:
            if not error <= LARGEST_ERROR:
                wrong[name] = f"its result has the error {error:.1e}"
    return wrong


def measure_shape(
    shape: Shape, rounds: int, milliseconds: Callable, device: str = "cuda"
) -> dict[str, object]:
    """Times of one shape; fraction_of_copy: of a copy's bandwidth; left_out, wrong: name -> why."""
    batch = Batch(shape, device=device)
    timed, left_out = steps(batch)
    wrong = why_wrong(timed)
    # Triton refuses a setting if this GPU has too little shared memory for it.
    left_out |= {name: why for name, why in wrong.items() if why.startswith("OutOfResources")}
    timed = {name: step for name, step in timed.items() if name not in wrong}
    target = torch.empty_like(batch.memory)
    times = interleaved(timed | {"copy": lambda: target.copy_(batch.memory)}, rounds, milliseconds)
    copied = 2 * target.nbytes / times["copy"]["median_ms"]  # bytes per millisecond
    return {
        "shape": shape.as_row(),
        "kv_bytes": shape.kv_bytes,
        "copy_gb_per_s": round(copied / 1e6, 1),
        "times": times,
        "fraction_of_copy": {
            name: round(shape.kv_bytes / times[name]["median_ms"] / copied, 3) for name in timed
        },
        "left_out": left_out,
        "wrong": {name: why for name, why in wrong.items() if name not in left_out},
    }


def measure(rounds: int, shapes: Iterable[Shape] = SHAPES) -> dict[str, object]:
    """gpu; rows, one per shape; wrong: what wasn't timed because its result is wrong."""
    rows, wrong, milliseconds = [], [], ColdL2()
    for shape in shapes:
        if torch.cuda.mem_get_info()[0] < COPIES * shape.kv_bytes:
            print(f"left out, no memory: {shape}")
            continue
        row = measure_shape(shape, rounds, milliseconds)
        rows.append(row)
        shown = ", ".join(f"{name} {100 * of:.0f}" for name, of in row["fraction_of_copy"].items())
        print(f"{shape}, % of a copy's {row['copy_gb_per_s']:,.0f} GB/s: {shown}", flush=True)
        for name, why in (row["left_out"] | row["wrong"]).items():
            print(f"  {name}: {why}")
        wrong += [f"{shape}: {name}: {why}" for name, why in row["wrong"].items()]
        torch.cuda.empty_cache()
    return {"gpu": torch.cuda.get_device_name(), "rows": rows, "wrong": wrong}


WHAT = "Time the kernels on this machine's GPU next to torch's SDPA and a copy. Installs nothing."


def main(command_line: list[str] | None = None) -> int:
    """The exit status: 1 if a result was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.bench.gpu",
        description=WHAT,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=21, help="rounds per point, for a median")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = parser.parse_args(command_line)
    if not torch.cuda.is_available():
        print("No GPU found, so we measured nothing. The walk needs none.")
        return 0
    os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # small grids are meant here
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    found = measure(arguments.rounds)
    print("\nwrote", write_results({"times": found}, name, arguments.out))
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
