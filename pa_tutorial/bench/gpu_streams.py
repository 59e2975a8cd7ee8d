"""How a launch behaves on a GPU: its stream, its graphs, nobody waits, much shared memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from pa_tutorial import private_names
from pa_tutorial.bench.batches import Arguments, random_batch, reference, worst_error
from pa_tutorial.bench.device import Device, this_gpu
from pa_tutorial.bench.gpu_grid import BOUNDS
from pa_tutorial.bench.process_pool import in_a_line
from pa_tutorial.bench.variants import PAGED
from pa_tutorial.kernels.gpu_launch import DEFAULT_SHARED
from pa_tutorial.kernels.prepare import most_shared

CYCLES = 400_000_000  # of a GPU's clock: about 0.2 seconds
NAMES = ("cuda_v1_vector", "cuda_v2")
MAX_SEQ_LEN = 700  # two partitions of v2


@dataclass(frozen=True)
class Streams:
    """What the checks need of a device besides Device.

    side         a context in which another stream is the current one; waits for it at the end
    busy         puts something on the current stream that takes long
    idle         whether the current stream has done all that was put on it
    no_waiting   a context in which torch raises if somebody waits for the device
    """

    side: Callable[[], Any]
    busy: Callable[[], None]
    idle: Callable[[], bool]
    no_waiting: Callable[[], Any]


@contextmanager
def side_stream() -> Iterator[None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@contextmanager
def waiting_raises() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


ON_GPU = Streams(
    side=side_stream,
    busy=lambda: private_names.sleep(CYCLES),
    idle=lambda: torch.cuda.current_stream().query(),
    no_waiting=waiting_raises,
)
# A CPU has one stream, on which everything is done at once.
ON_CPU = Streams(nullcontext, lambda: None, lambda: False, nullcontext)


def batch(device: Device, most: int = MAX_SEQ_LEN, seed: int = 0) -> Arguments:
    sizes = (4, 2, 64, 16, torch.float16)  # heads, KV heads, head size, block size
    return random_batch((most, 9), *sizes, 80, device.where, seed=seed)


def require_right(out: torch.Tensor, arguments: Arguments) -> None:
    """AssertionError unless it is what attention gives."""
    error = worst_error(out, reference(**arguments))
    if not error <= BOUNDS[out.dtype]:
        raise AssertionError(f"its result has the error {error:.1e}")


def runs_on_the_current_stream(name: str, device: Device, streams: Streams) -> None:
    """q arrives on another stream than the default one, late. A launch on any other stream would
    read q before."""
    arguments = batch(device)
    q, late = arguments["q"], arguments["q"].clone()
    step = PAGED[name](arguments)
    step()
    q.fill_(torch.nan)
    device.synchronize()
    with streams.side():
        streams.busy()
        q.copy_(late)
        out = step()
    require_right(out, arguments)


def nobody_waits(name: str, device: Device, streams: Streams) -> None:
    """While the stream is busy, a launch returns; and torch sees nobody wait."""
    arguments = batch(device)
    step = PAGED[name](arguments)
    step()
    device.synchronize()
    with streams.side():
        step()
        streams.busy()
        with streams.no_waiting():
            step()
        if streams.idle():
            raise AssertionError("the launch came back when all was done: it waited")


def graph_reads_new_numbers(name: str, device: Device, streams: Streams) -> None:
    """A graph is replayed after other numbers were put into the same tensors."""
    arguments, second_batch = batch(device), batch(device, most=MAX_SEQ_LEN - 100, seed=1)
    step = PAGED[name](arguments)
    out = step()
    replay = device.captured([step])
    for tensor in ("q", "k_cache", "v_cache", "seq_lens"):
        arguments[tensor].copy_(second_batch[tensor])
    tables = arguments["block_tables"]
    tables[:, : second_batch["block_tables"].shape[1]].copy_(second_batch["block_tables"])
    replay()
    device.synchronize()
    require_right(out, arguments)


def more_than_48_kib(name: str, device: Device, streams: Streams) -> None:
    """Scores of 14,000 tokens are 56,000 bytes: v1 must ask for them, v2 needs no more than
    before."""
    arguments = batch(device, most=14_000)
    assert 4 * arguments["max_seq_len"] > DEFAULT_SHARED
    require_right(PAGED[name](arguments)(), arguments)


def too_long_is_refused(name: str, device: Device, streams: Streams) -> None:
    """Past all shared memory v1 says so and names v2, which takes it."""
    most = most_shared(torch.empty(0, device=device.where)) // 4 + 16
    arguments = batch(device, most=most)
    if name == "cuda_v2":
        require_right(PAGED[name](arguments)(), arguments)
        return
    try:
        PAGED[name](arguments)
    except ValueError as error:
        if "paged_attention_v2 has no such limit" not in str(error):
            raise
    else:
        raise AssertionError(f"{most} tokens were not refused")


CHECKS = (
    runs_on_the_current_stream,
    nobody_waits,
    graph_reads_new_numbers,
    more_than_48_kib,
    too_long_is_refused,
)


def compare(
    seconds: float, device: Device | None = None, streams: Streams = ON_GPU
) -> dict[str, object]:
    """Every check with v1_vector and v2; prints what fails. returns  "passed", "wrong" """
    device = device or this_gpu()
    passed, wrong = [], []
    for check in CHECKS:
        for name in NAMES:
            title = f"{name} {check.__name__}"
            try:
                check(name, device, streams)
            except Exception as error:  # of one check; the others are made
                wrong.append(f"{title}: {in_a_line(error)}")
                print(f"  {wrong[-1]}")
            else:
                passed.append(title)
    print(f"{len(passed)} of {len(passed) + len(wrong)} checks of streams and graphs pass")
    return {"passed": passed, "wrong": wrong}
