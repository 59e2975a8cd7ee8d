"""The settings of the Triton kernels: each is tried on the GPU, and the fastest is taken.

In CUDA the author of a kernel chooses how many threads work on how many tokens. In Triton that is
a number for the compiler, and which is best differs from GPU to GPU and from batch to batch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from pa_tutorial.bench.batches import Arguments
from pa_tutorial.bench.cpu_stages import NOT_ON_A_CPU
from pa_tutorial.bench.device import Device
from pa_tutorial.bench.process_pool import in_a_line
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.bench.variants import Step
from pa_tutorial.kernels.triton_launch import NUM_STAGES, prepare_triton, why_absent

TRIES = 3  # of each setting; the median counts
NO_TIME = "no time was left"


@dataclass(frozen=True)
class Setting:
    """What one may choose without changing the result.

    tile_size       tokens of one step of the loop
    num_warps       of one program
    partition_size  tokens that one program goes through
    num_stages      with 3, K and V of one tile are brought at a time; with 5, the next one too
    """

    tile_size: int
    num_warps: int
    partition_size: int
    num_stages: int = NUM_STAGES

    def __str__(self) -> str:
        return f"{self.tile_size}/{self.num_warps}/{self.partition_size}/{self.num_stages}"


# Few: each tile with its warps and stages is compiled once for each kind of blocks, about a second.
# What is said of registers and shared memory is for heads of 128 in 16 bits.
SETTINGS = (
    Setting(32, 4, 512),  # what prepare_triton takes where nothing is said; vLLM's partitions
    Setting(32, 4, 512, num_stages=5),  # loads and products overlap: 51 KB in place of 34
    Setting(16, 2, 512),  # few registers, 17 KB of shared memory: many programs at a time
    Setting(16, 2, 512, num_stages=5),
    Setting(64, 8, 512),  # twice the bytes in flight: 67 KB for each program
    Setting(64, 4, 1024, num_stages=5),  # fewer partitions: less to write and to reduce, for many
    Setting(32, 4, 256, num_stages=5),  # more programs: for few sequences
    Setting(32, 2, 512),  # as many bytes in flight by half the warps
)


def why_not_timed() -> str | None:
    """Why no time of the Triton kernels can be taken on this machine; None if it can."""
    if why := why_absent():
        return why
    if not torch.cuda.is_available():
        return f"no GPU here, and {NOT_ON_A_CPU['triton']}"
    return None


@dataclass
class Tuned:
    """What came of the settings for one workload.

    chosen    the fastest; None if none gave the right result
    steps     one for each set of inputs, by that setting
    ms        setting -> milliseconds of all steps, one after the other
    left_out  setting -> why it was not timed: the GPU refuses it, or there was no time
    wrong     setting -> what is wrong with it; "triton" if none is left
    """

    chosen: Setting | None = None
    steps: list[Step] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, object]:
        """For the JSON file."""
        chosen = None if self.chosen is None else asdict(self.chosen)
        return {"chosen": chosen, "ms": self.ms, "left_out": self.left_out}


class Tuner:
    """Finds the fastest setting, workload after workload.

    seconds  for all of them together

    The one that was the fastest before is tried first, even if no time is left: so a workload
    that cannot be tuned takes what the one before it found.
    """

    def __init__(self, device: Device, seconds: float, settings: Sequence[Setting] = SETTINGS):
        self.device, self.seconds, self.order = device, seconds, list(settings)

    def tune(self, sets: list[Arguments], whats_wrong: Callable[[Tensor], str | None]) -> Tuned:
        """The fastest setting for these steps.

        sets         arguments of prepare_triton for each step
        whats_wrong  takes the result of the first step; None if it is right
        """
        end = time.monotonic() + self.seconds
        found = Tuned()
        steps: dict[Setting, list[Step]] = {}
        replays = {}
        for setting in self.order:
            name = str(setting)
            if steps and time.monotonic() > end:
                found.left_out[name] = NO_TIME
                continue
            try:
                made = [prepare_triton(**arguments, **asdict(setting)).run for arguments in sets]
                if why := whats_wrong(made[0]()):
                    found.wrong[f"triton {name}"] = why
                    continue
                replays[name] = self.device.captured(made)
            except Exception as failed:  # of one setting; the others are tried
                if is_refusal(failed):
                    found.left_out[name] = in_a_line(failed)
                else:
                    found.wrong[f"triton {name}"] = in_a_line(failed)
            else:
                steps[setting] = made
        times = interleaved(replays, TRIES, self.device.milliseconds)
        found.ms = {name: times[name]["median_ms"] for name in replays}
        if steps:
            found.chosen = min(steps, key=lambda setting: found.ms[str(setting)])
            found.steps = steps[found.chosen]
            self.order.remove(found.chosen)
            self.order.insert(0, found.chosen)
        elif not found.wrong:
            why = next(iter(found.left_out.values()), "there is none")
            found.wrong["triton"] = f"no setting can be run: {why}"
        self.seconds = end - time.monotonic()
        return found


def is_refusal(error: Exception) -> bool:
    """Whether a setting asks for more shared memory, or threads, than this GPU has."""
    from triton.runtime.errors import OutOfResources

    return isinstance(error, OutOfResources)
