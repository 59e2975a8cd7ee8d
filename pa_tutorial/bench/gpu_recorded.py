"""The paged kernels on a GPU beside what the simulator computed, from simulated.npz.

Not bit for bit: a GPU adds in another order, fuses a * b + c into one rounding, and has another
exp. What v2 leaves for its reduce kernel is compared too.
"""

import torch
from torch import Tensor

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


def compare(seconds: float, device: str = "cuda") -> dict[str, object]:
    """Every recorded case with every kernel; prints what differs.

    returns  "equal": how many; "different": "kernel case" -> quantity -> error; "wrong"
    """
    arrays = load()
    different = {}
    for case_id in IDS:
        for kernel in KERNELS:
            expected = recorded(case_id, kernel, arrays)
            found = differences(outputs(case_id, kernel, device), expected)
            if found:
                name = f"{kernel} {case_id}"
                different[name] = {q: f"{e:.1e}" for q, e in found.items()}
                print(f"  {name}: relative error of {different[name]}")
    total = len(IDS) * len(KERNELS)
    print(f"{total - len(different)} of {total} launches give what the simulator gave")
    equal = total - len(different)
    return {"equal": equal, "different": different, "wrong": list(different)}
