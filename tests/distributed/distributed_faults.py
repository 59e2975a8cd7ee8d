"""The engine's command line, with a fault on one rank, in the middle of a step.

    FAULT=kill:1:2 torchrun --nproc-per-node 2 -m distributed_faults --tensor-parallel 2 …

does harm to rank 1 in its step 2, after the first layer: the others wait in the next sum. Kinds:
those of distributed_serving.do_harm, and

    slow     every layer of every rank takes long; rank and step only say when it is told
    options  not in a step: this rank is started with another --block-size
"""

import os
import sys
import time

from distributed_serving import do_harm
from torch import Tensor

from pa_tutorial.engine.__main__ import main
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.runner import Runner

kind, at_rank, at_step = os.environ.get("FAULT", "raise:-1:0").split(":")
plain_attention = Runner.attention
num_steps = 0


def attention(runner: Runner, layer: int, q: Tensor, batch: Batch) -> Tensor:
    """That of the engine, after which the harm is done."""
    global num_steps
    num_steps += layer == 0
    out = plain_attention(runner, layer, q, batch)
    if kind == "slow":
        time.sleep(0.2)
    here = (os.environ["RANK"], num_steps - 1, layer) == (at_rank, int(at_step), 1)
    if here and kind != "options":
        print(f"fault at {time.time()}", file=sys.stderr, flush=True)
        if kind != "slow":
            do_harm(kind)
    return out


if __name__ == "__main__":
    print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
    Runner.attention = attention
    different = kind == "options" and os.environ["RANK"] == at_rank
    sys.exit(main([*sys.argv[1:], *(["--block-size", "8"] if different else [])]))
