"""Measure on this machine's CPU: `python -m pa_tutorial.bench`.

The next token of TinyLM, recomputing everything against the KV cache; what the memory manager
costs, by the size of its pool; and what simulating a kernel costs, against Numba's simulator.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from pa_tutorial.attention.tiny_lm import TinyLM, load
from pa_tutorial.bench.block_manager import bytes_per_block, time_per_operation
from pa_tutorial.bench.simulator import measure as measure_simulator
from pa_tutorial.bench.timing import RESULTS, interleaved, write_results
from pa_tutorial.machine import cpu_name, describe_machine


class DecodeStep:
    """The next token over a filled cache, again and again at the same length."""

    def __init__(self, model: TinyLM, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.caches = model.new_caches(len(tokens))
        model(tokens[:-1], self.caches)

    def __call__(self) -> Tensor:
        for cache in self.caches:
            cache.seq_len = len(self.tokens) - 1
        return self.model(self.tokens[-1:], self.caches)


@torch.inference_mode()
def next_token(lengths: tuple[int, ...], rounds: int) -> list[dict[str, object]]:
    """Time of the next token at each length: recomputed, cached, and how they compare."""
    model = load()
    rows = []
    for length in lengths:
        tokens = torch.arange(length) % model.config.vocab_size
        times = interleaved(
            {
                "full_recompute": lambda tokens=tokens: model(tokens),
                "kv_cache": DecodeStep(model, tokens),
            },
            rounds,
        )
        ratio = times["full_recompute"]["median_ms"] / times["kv_cache"]["median_ms"]
        rows.append({"seq_len": length, **times, "ratio": round(ratio, 2)})
        print(
            f"  {length:4} tokens: {times['full_recompute']['median_ms']:7.2f} ms recomputed, "
            f"{times['kv_cache']['median_ms']:6.2f} ms cached, {ratio:5.1f} times",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.bench", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=21, help="measurements a point (median)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = parser.parse_args()
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    print(f"Time for the next token of TinyLM, median of {arguments.rounds}:")
    rows = next_token((16, 64, 128, 256), arguments.rounds)
    print(f"Memory manager, median of {arguments.rounds}, by blocks in the pool:")
    manager = {
        "time": time_per_operation((1_000, 10_000, 100_000, 1_000_000), arguments.rounds),
        "bytes_per_block": bytes_per_block(100_000),
    }
    print("  bytes of Python objects per block:", manager["bytes_per_block"])
    rounds = min(arguments.rounds, 5)
    print(f"Simulated kernels, median of {rounds}:")
    simulator = measure_simulator(rounds)
    path = write_results(
        {"next_token": rows, "block_manager": manager, "simulator": simulator},
        f"{cpu_name()} {machine['cores']} cores",
        arguments.out,
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
