"""A device for the tests of `make gpu`: the CPU and the simulator, or times out of a table."""

import dataclasses
from collections.abc import Callable, Sequence

from pa_tutorial.bench.device import Device, Function
from pa_tutorial.bench.timing import host_milliseconds


def captured(launches: Sequence[Function]) -> Function:
    """A replay runs all launches again."""

    def replay() -> None:
        for launch in launches:
            launch()

    return replay


CPU = Device(
    where="cpu",
    captured=captured,
    milliseconds=host_milliseconds,
    synchronize=lambda: None,
    l2_bytes=20_000,
    free_bytes=2**30,
)


def timed_by(milliseconds: Callable[[Function], float]) -> Device:
    """The CPU, where a call takes as long as a function says; nothing is called."""
    return dataclasses.replace(CPU, milliseconds=milliseconds)
