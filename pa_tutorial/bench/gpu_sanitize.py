"""The program that compute-sanitizer watches: every kernel a few times, on small shapes.

compute-sanitizer --tool memcheck python3 -m pa_tutorial.bench.gpu_sanitize
"""

import torch
from torch import Tensor

from pa_tutorial.bench import gpu_cache
from pa_tutorial.bench.batches import Arguments
from pa_tutorial.bench.gpu_ladder import moved
from pa_tutorial.bench.record import arguments_of
from pa_tutorial.bench.variants import PAGED
from pa_tutorial.kernels.prepare import prepare_v2

# Each dtype and block size, tails, heads that share K and V, a strided q.
CASES = ("decode/strided_q_float16", "decode/bfloat16", "decode/alibi_block_size_8")
PARTITION_SIZE = 32
DONE = "every kernel was launched"


def launch_all(device: str = "cuda", cases: tuple[str, ...] = CASES) -> int:
    """How many steps were run."""
    count = 0
    for case_id in cases:
        arguments: Arguments = {
            name: moved(value, device) if isinstance(value, Tensor) else value
            for name, value in arguments_of(case_id).items()
        }
        steps = [prepare(arguments) for prepare in PAGED.values()]
        steps.append(prepare_v2(**arguments, partition_size=PARTITION_SIZE).run)
        for step in steps:
            step()
        count += len(steps)
    # The kernels that write to the cache: both, at one size.
    assert gpu_cache.difference(torch.float16, 80, 8, device) is None
    return count + 2


def main() -> None:
    torch.cuda.set_stream(torch.cuda.Stream())  # the twin asks for a stream with a handle
    count = launch_all()
    torch.cuda.synchronize()
    print(f"{DONE}: {count} steps")


if __name__ == "__main__":
    main()
