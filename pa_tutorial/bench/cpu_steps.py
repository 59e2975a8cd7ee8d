"""What each step on the way to the CPU kernel brings: `python -m pa_tutorial.bench.cpu_steps`."""

from collections.abc import Sequence

import torch

from pa_tutorial.bench.cpu_inputs import B1, GQA, S1, Batch, ColdCaches, Shape, reading
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.kernels.cpu_steps import STEPS

# From 64 to 4096 tokens, each 1.32 times another, in no order; about as many tokens as S1.
MIXED_LENS = (111, 1024, 64, 3104, 338, 256, 147, 588, 446, 1351, 4096, 84, 1783, 2353, 776, 194)
MIXED = Shape("MIXED", MIXED_LENS, num_heads=16, num_kv_heads=16, head_size=128)
SHAPES = tuple(
    shape.of(dtype) for shape in (S1, GQA, B1, MIXED) for dtype in (torch.float32, torch.bfloat16)
)


def measure(rounds: int, shapes: Sequence[Shape] = SHAPES) -> list[dict[str, object]]:
    """Every step on every shape, each after the caches were filled with something else.

    returns  one row a shape: shape, read_ms (the same bytes, read once, in the same rounds)
             and times: step -> median_ms, lowest_ms, highest_ms
    """
    rows = []
    cold = ColdCaches()
    for shape in shapes:
        batch = Batch(shape)
        functions = {name: prepare(*batch.arguments) for name, prepare in STEPS.items()}
        times = interleaved(functions | {"read": reading(batch)}, rounds, cold)
        read_ms = times.pop("read")["median_ms"]
        rows.append({"shape": shape.as_row(), "read_ms": read_ms, "times": times})
        medians = ", ".join(f"{name} {time['median_ms']:.1f}" for name, time in times.items())
        print(f"  {shape}: read {read_ms:.1f} ms, {medians}", flush=True)
    return rows


if __name__ == "__main__":
    measure(rounds=11)
