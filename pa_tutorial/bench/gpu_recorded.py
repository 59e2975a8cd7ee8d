"""The paged kernels on a GPU beside what the simulator computed, from simulated.npz.

Not bit for bit: a GPU adds in another order, fuses a * b + c into one rounding, and has another
exp. What v2 leaves for its reduce kernel is compared too.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.bench.process_pool import WORKERS, run_in_pool
from pa_tutorial.bench.record import IDS, KERNELS, Outputs, load, outputs, recorded
from pa_tutorial.checks.comparing import relative_errors, to_float64

# Largest relative norm of a difference: some roundings of sums; one unit in the last place.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error(found: Tensor, expected: Tensor) -> float:
    """The largest relative norm over the last dimension. NaN, which stands where a sequence has
    no such partition, must stand in the same places: inf otherwise."""
    left, right = to_float64(found), to_float64(expected)
    empty = torch.from_numpy(right).isnan().numpy()
    if left.shape != right.shape or not (torch.from_numpy(left).isnan().numpy() == empty).all():
        return float("inf")
    left[empty] = right[empty] = 0.0
    return float(relative_errors(left, right).max())


def differences(found: Outputs, expected: Outputs) -> dict[str, float]:
    """quantity -> error, where it is beyond the tolerance of its dtype."""
    errors = {name: error(found[name], tensor) for name, tensor in expected.items()}
    return {n: e for n, e in errors.items() if not e <= TOLERANCE[expected[n].dtype]}


def different_in(case_id: str, device: str = "cuda") -> dict[str, dict[str, str]]:
    """kernel -> quantity -> error, for what differs in one case."""
    arrays = load()
    found = {}
    for kernel in KERNELS:
        expected = recorded(case_id, kernel, arrays)
        errors = differences(outputs(case_id, kernel, device), expected)
        if errors:
            found[kernel] = {quantity: f"{error:.1e}" for quantity, error in errors.items()}
    return found


def compare(
    seconds: float,
    workers: int = WORKERS,
    work: Callable[[str], dict[str, dict[str, str]]] = different_in,
) -> dict[str, object]:
    """Every recorded case with every kernel; prints what differs.

    returns  "equal": how many; "different": "kernel case" -> quantity -> error; "failed" and
             "left_out" by case; "wrong"
    """
    done = run_in_pool(work, IDS, workers, seconds)
    different = {
        f"{kernel} {IDS[place]}": errors
        for place, found in done.results.items()
        for kernel, errors in found.items()
    }
    failed = {IDS[place]: why for place, why in done.failed.items()}
    left_out = [IDS[place] for place in done.left_out]
    equal = len(KERNELS) * len(done.results) - len(different)
    print(f"{equal} of {len(KERNELS) * len(IDS)} launches give what the simulator gave")
    for name, why in (different | failed).items():
        print(f"  {name}: {why}")
    if left_out:
        print(f"  left out, no time: {' '.join(left_out)}")
    return {
        "equal": equal,
        "different": different,
        "failed": failed,
        "left_out": left_out,
        "wrong": [*different, *failed],
    }
