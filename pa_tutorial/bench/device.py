"""The device that `make gpu` measures: how to capture, to wait and to time there.

The tests put a Device of functions for the CPU in the place of the GPU.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[[], Any]


def captured(launches: Sequence[Function]) -> Function:
    """One CUDA graph of all launches, one after the other; a call replays it and does not wait.

    Each is called once before: the first call compiles its kernel, which no graph can hold. On
    another stream than the default one, as torch asks for it.
    """
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for launch in launches:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph.replay


def milliseconds(function: Function) -> float:
    """Time on the GPU between two events around one call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@dataclass(frozen=True)
class Device:
    """What the sections of `make gpu` need of a device.

    where         as torch names it
    captured      launches -> a function that runs all of them, as one
    milliseconds  function -> time of one call
    synchronize   waits until all is done
    l2_bytes      of the cache that all of the device shares
    free_bytes    of memory
    """

    where: str
    captured: Callable[[Sequence[Function]], Function]
    milliseconds: Callable[[Function], float]
    synchronize: Function
    l2_bytes: int
    free_bytes: int


def this_gpu() -> Device:
    """torch's current CUDA device, with a stream of its own made the current one.

    (The default stream has no handle, for which the twin in C++ asks.)
    """
    torch.cuda.set_stream(torch.cuda.Stream())
    return Device(
        where="cuda",
        captured=captured,
        milliseconds=milliseconds,
        synchronize=torch.cuda.synchronize,
        l2_bytes=torch.cuda.get_device_properties().L2_cache_size,
        free_bytes=torch.cuda.mem_get_info()[0],
    )


def host_microseconds(function: Function, device: Device, rounds: int = 200) -> float:
    """Median time that a call takes on the host, which does not wait for the device.

    It waits between the calls: a full queue of launches would hold them up.
    """
    times = []
    for _ in range(rounds):
        device.synchronize()
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    device.synchronize()
    return round(1e6 * statistics.median(times), 2)
