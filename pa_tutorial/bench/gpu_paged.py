"""The paged kernels on a GPU: does every case of their stage pass there too?

The arrays are copied there and back: this checks the kernels, it measures nothing.
"""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.cases import CASES
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.launch import Launch, prepare_naive, prepare_v1
from pa_tutorial.ladder import STAGES

KERNELS: Mapping[str, Callable[..., Launch]] = {
    "cuda_naive": prepare_naive,
    "cuda_v1": prepare_v1,
}
# More dynamic shared memory than this must be asked for; Numba does not.
MAX_DYNAMIC_SHARED = 48 * 1024

Run = Callable[[Launch], None]


def on_the_gpu(ready: Launch) -> None:
    """Copies the arguments to the device, launches, and copies `out` back.

    Raises ValueError, before it copies anything, for more shared memory than a launch gives.
    """
    from numba import cuda

    allowed = f"at most {MAX_DYNAMIC_SHARED}"
    require(ready.shared_bytes <= MAX_DYNAMIC_SHARED, "shared_bytes", ready.shared_bytes, allowed)
    arguments = dict(ready.arguments)
    for name, value in ready.arguments.items():
        if isinstance(value, Tensor):
            array = value.numpy() if value.numel() else np.zeros(1, np.float32)
            arguments[name] = cuda.to_device(np.ascontiguousarray(array))
    launch = ready.kernel[ready.grid, ready.geometry.NUM_THREADS, 0, ready.shared_bytes]
    launch(*arguments.values())
    cuda.synchronize()
    ready.arguments["out"].numpy()[...] = arguments["out"].copy_to_host()


def compare(run: Run = on_the_gpu) -> dict[str, object]:
    """Runs both kernels on every case of their stages; returns how many pass, and why not."""
    results = {}
    for name, prepare in KERNELS.items():

        def decode(*tensors: object, prepare: Callable = prepare) -> Tensor:
            ready = prepare(*tensors)
            run(ready)
            return ready.out

        cases = [case.id for case in CASES.values() if STAGES[name].is_checked_on(case)]
        judged = [judge(stage_trial(STAGES[name], case_id), decode)[0] for case_id in cases]
        different = {case.name: case.diagnosis for case in judged if not case.passed}
        results[name] = {"passed": len(cases) - len(different), "different": different}
        print(f"  {name}: {len(cases) - len(different)} of {len(cases)} cases pass", flush=True)
        for case_id, diagnosis in different.items():
            print(f"    {case_id}: {diagnosis}")
    return results
