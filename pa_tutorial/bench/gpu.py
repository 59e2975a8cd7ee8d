"""Measure on this machine's GPU: `make gpu`, or `python3 -m pa_tutorial.bench.gpu`.

Runs from the working tree with whatever python3 has; installs nothing; names what is missing.
Measured: decode attention of the stage kv_cache, as a fraction of the bandwidth of a plain copy
on the same device. Checked: the small kernels of tests/simt_kernels give there what the simulator
says, and the paged kernels pass the cases of their stages. Compared, with Nsight Compute: what
the accesses of the small kernels cost in requests, sectors and bank conflicts.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# What is used there, now or by later stages.
PACKAGES = ("torch", "numba", "numba_cuda", "triton")


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if find_spec(name) is None]


def decode_bandwidth(
    device: str, num_seqs: int, seq_len: int, num_heads: int, head_size: int, rounds: int
) -> dict[str, object]:
    """Bytes a second that decode attention reads, beside those that a copy moves.

    Every sequence is one call here: this stage has no batch. float16.
    """
    import torch

    from pa_tutorial.attention.cached import cached_attention
    from pa_tutorial.bench.timing import interleaved

    shape = (num_seqs, seq_len, num_heads, head_size)
    keys, values = (torch.randn(shape, device=device).half() for _ in "kv")
    queries = torch.randn(num_seqs, 1, num_heads, head_size, device=device).half()
    copies = torch.empty_like(keys)

    def decode() -> None:
        for q, k, v in zip(queries, keys, values, strict=True):
            cached_attention(q, k, v, head_size**-0.5)

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = interleaved(
        {"kv_cache": decode, "copy": lambda: copies.copy_(keys)}, rounds, synchronize
    )
    read = (keys.nbytes + values.nbytes) / times["kv_cache"]["median_ms"]
    copied = 2 * keys.nbytes / times["copy"]["median_ms"]  # read and written
    return {
        "shape": dict(zip(("num_seqs", "seq_len", "num_heads", "head_size"), shape, strict=True)),
        **times,
        "decode_GB_per_s": round(read / 1e6, 2),
        "copy_GB_per_s": round(copied / 1e6, 2),
        "fraction_of_copy": round(read / copied, 4),
    }


def simulated_kernels() -> dict[str, object]:
    """The small kernels of the simulator's tests on the GPU; see gpu_kernels.py."""
    from pa_tutorial.bench.gpu_kernels import compare

    print("The simulator's kernels on the GPU:")
    return compare()


def traffic() -> dict[str, object]:
    """What the memory accesses of such kernels cost on the GPU; see gpu_traffic.py."""
    from pa_tutorial.bench.gpu_traffic import compare

    print("The simulator's counts of memory beside Nsight Compute's:")
    return compare()


def paged_kernels() -> dict[str, object]:
    """The paged kernels on every case of their stages; see gpu_paged.py."""
    from pa_tutorial.bench.gpu_paged import compare

    print("The paged kernels on the GPU:")
    return compare()


def with_numba(compare: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What a comparison returns; where Numba is missing, why there is none."""
    missing = [name for name in ("numba", "numba_cuda") if name in missing_packages()]
    if missing:
        return {"not_compared": f"missing on this machine: {', '.join(missing)}"}
    return compare()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks)")
    arguments = parser.parse_args()
    for name in missing_packages():
        print(f"{name} is missing on this machine: what needs it is skipped.")
    if "torch" in missing_packages():
        print("Nothing was measured.")
        return 0
    import torch

    from pa_tutorial.bench.timing import RESULTS, write_results

    if not torch.cuda.is_available():
        print("No GPU here: nothing was measured. The walk needs none.")
        return 0
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    result = decode_bandwidth("cuda", 16, 4096, 32, 128, rounds=11)
    print(
        f"kv_cache reads {result['decode_GB_per_s']:.0f} GB/s, a copy moves "
        f"{result['copy_GB_per_s']:.0f} GB/s: {result['fraction_of_copy']:.0%}"
    )
    results = {
        "decode_bandwidth": result,
        "simulated_kernels": with_numba(simulated_kernels),
        "paged_kernels": with_numba(paged_kernels),
        "traffic": with_numba(traffic),
    }
    path = write_results(results, name, arguments.out or RESULTS)
    print(f"wrote {path}")
    wrong = [results["simulated_kernels"], *results["paged_kernels"].values()]
    return 1 if any(isinstance(r, dict) and r.get("different") for r in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
