"""The section `many_devices` of `make bench`: the model on paper beside two ranks that run here.

The two ranks are processes of this machine with one thread each. They share its memory: the
"device" of the model is what each of them gets while both read. They talk by gloo over loopback,
where sending is copying, by the same cores. So this is the model's arithmetic put to the test,
not what GPUs on NVLink would do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch

from pa_tutorial.bench import distributed_ranks as on_ranks
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.distributed_ranks import (
    BLOCKS,
    HEADS,
    MERGE,
    MULTIPLY_ONE,
    MULTIPLY_TWO,
    ONE,
    READ_ONE,
    READ_TWO,
    TWO,
    Job,
    Times,
)
from pa_tutorial.bench.distributed_table import (
    attention_table,
    devices_table,
    engine_table,
    link_table,
)
from pa_tutorial.bench.engine_steps import summary
from pa_tutorial.bench.processor import last_cache_bytes
from pa_tutorial.distributed.paper import (
    Collective,
    attention_time,
    collectives,
    decode_time,
    weight_bytes,
)
from pa_tutorial.distributed.paper import Times as Predicted
from pa_tutorial.distributed.ranks import Ranks
from pa_tutorial.distributed.sizes import Device, Link, ModelSizes
from pa_tutorial.engine.model import LlamaConfig

SMALL_MESSAGE, LARGE_MESSAGE = 2**10, 2**20  # bytes: up to here latency, from here on bandwidth
FLOAT32 = 4


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    message_bytes, most_repeats  of all-reduces
    read_bytes                   of each rank, with cold caches or far more than they hold
    matrix                       rows of a square matrix
    shapes                       of attention
    config, batches, context     of the engine
    """

    message_bytes: tuple[int, ...]
    most_repeats: int
    read_bytes: int
    matrix: int
    shapes: tuple[Shape, ...]
    config: LlamaConfig
    batches: tuple[int, ...]
    context: int
    flush_bytes: int


def attention_shape(num_seqs: int, seq_len: int, num_heads: int = 8) -> Shape:
    return Shape("many devices", (seq_len,) * num_seqs, num_heads, num_heads, 128)


FULL = Sizes(
    message_bytes=tuple(16 * 4**i for i in range(12)),  # to 64 MiB
    most_repeats=50,
    read_bytes=2**27,
    matrix=1024,
    shapes=tuple(attention_shape(n, 16384 // n) for n in (1, 4, 32)),  # 128 MiB
    config=LlamaConfig(8, 16, 4, 64, 1024, 2816, 8192, max_len=1024),  # 445 MiB of weights
    batches=(1, 16),
    context=512,
    flush_bytes=2 * last_cache_bytes(),
)
QUICK = Sizes(
    message_bytes=(16, 2**20),
    most_repeats=3,
    read_bytes=2**20,
    matrix=64,
    shapes=(attention_shape(2, 40, num_heads=2),),
    config=LlamaConfig(2, 4, 2, 16, 64, 128, 256, max_len=128),
    batches=(2,),
    context=20,
    flush_bytes=2**20,
)
EMPTY_CONTEXT = 16


def empty(config: LlamaConfig) -> LlamaConfig:
    """As many layers and heads, and hardly anything to read: what is left of a step is starting
    things, Python, DTensor and the latency of messages."""
    return replace(config, head_size=16, hidden_size=64, mlp_size=64, vocab_size=64)


# From times to devices and links ----------------------------------------------------------------


def slowest(results: Sequence[Times]) -> Times:
    """Of all ranks, round by round: a step is over when the last one is done."""
    return {
        name: [max(of_a_round) for of_a_round in zip(*(r[name] for r in results), strict=True)]
        for name in results[0]
    }


def all_reduce(num_bytes: int) -> Collective:
    return Collective("all-reduce", 1, num_bytes, devices=2, passes=2)


def link_of(milliseconds: Mapping[int, float]) -> Link:
    """From the time of an all-reduce by its bytes: the medians of small and of large messages."""
    small = [ms for size, ms in milliseconds.items() if size <= SMALL_MESSAGE]
    hops = all_reduce(1).hops
    latency = median(small) / 1e3 / hops
    bandwidth = median(
        all_reduce(size).bytes_sent / max(1e-9, ms / 1e3 - hops * latency)
        for size, ms in milliseconds.items()
        if size >= LARGE_MESSAGE
    )
    return Link("gloo, loopback", bandwidth, latency)


def devices_of(
    times: Mapping[str, Sequence[float]], num_bytes: int, flops: Sequence[float]
) -> dict[int, Device]:
    """How fast one rank reads by itself, and each of two at the same time.

    returns  number of ranks -> Device
    """
    reads = (times[READ_ONE], times[READ_TWO])
    return {
        n: Device(f"one of {n} ranks", num_bytes / (median(read) / 1e3), 0, flops[n - 1])
        for n, read in enumerate(reads, start=1)
    }


def row_of(times: Sequence[float], predicted: Predicted | float) -> dict[str, object]:
    """Measured and predicted milliseconds, and their ratio. predicted: seconds."""
    seconds = predicted if isinstance(predicted, float) else predicted.total
    row = summary(times)
    row["predicted_ms"] = round(1e3 * seconds, 4)
    if isinstance(predicted, Predicted):
        row["parts_ms"] = {part: round(1e3 * s, 4) for part, s in asdict(predicted).items()}
    return row | {"ratio": round(row["median_ms"] / (1e3 * seconds), 3)}


def from_one(
    times: Mapping[str, Sequence[float]],
    one: Predicted,
    two: Predicted,
    name: str,
    empty_ms: Mapping[str, float] | None = None,
    talking_when_empty: float = 0.0,
) -> float:
    """Measured time of a way of two ranks, over what one rank's own time lets expect.

    One rank is slower than its memory. If two are so by the same factor, what is left is the
    model's division by two, and the talking.

    empty_ms  of an empty step, in either way: it is divided by nothing
    """
    empty_ms = empty_ms or {ONE: 0.0, name: 0.0}
    factor = (median(times[ONE]) - empty_ms[ONE]) / (1e3 * one.total)
    talking = two.talking - talking_when_empty
    expected = 1e3 * (factor * (two.total - two.talking) + talking) + empty_ms[name]
    return round(median(times[name]) / expected, 3)


# The parts --------------------------------------------------------------------------------------


def measure_link(ranks: Ranks, sizes: Sizes, rounds: int) -> tuple[Link, dict[str, object]]:
    arguments = list(sizes.message_bytes), sizes.most_repeats, rounds
    times = slowest(ranks.run(on_ranks.measure_link, *arguments))
    link = link_of({int(size): median(each) for size, each in times.items()})
    rows = [
        {"bytes": int(size)} | row_of(each, all_reduce(int(size)).seconds(link))
        for size, each in times.items()
    ]
    return link, asdict(link) | {"rows": rows}


def measure_devices(ranks: Ranks, sizes: Sizes, rounds: int) -> list[dict[str, object]]:
    """Of one rank, and of each of two: GB/s and, in float32, GFLOP/s."""
    arguments = sizes.read_bytes, sizes.matrix, rounds
    times = slowest(ranks.run(on_ranks.measure_devices, *arguments))
    flops = [
        2 * sizes.matrix**3 / (median(times[name]) / 1e3) for name in (MULTIPLY_ONE, MULTIPLY_TWO)
    ]
    return [
        {"ranks": n, "bandwidth": round(device.bandwidth), "flops": round(device.flops)}
        for n, device in devices_of(times, sizes.read_bytes, flops).items()
    ]


def attention_model(shape: Shape) -> ModelSizes:
    """One layer with these heads, and hardly any weights."""
    heads = shape.num_heads
    return ModelSizes(
        "attention", 1, heads, shape.num_kv_heads, shape.head_size, 1, heads, heads, FLOAT32
    )


def attention_row(
    shape: Shape, times: Times, link: Link, flops: Sequence[float]
) -> dict[str, object]:
    """Each way, measured and predicted with what was read in the same rounds."""
    devices = devices_of(times, shape.kv_bytes // 2, flops)
    model, batch, context = attention_model(shape), len(shape.seq_lens), shape.seq_lens[0]
    merging = sum(part.times * part.seconds(link) for part in collectives(model, batch, contexts=2))
    dealt = attention_time(model, devices[2], batch, context, contexts=2)
    predicted = {
        ONE: attention_time(model, devices[1], batch, context),
        HEADS: attention_time(model, devices[2], batch, context, heads=2),
        BLOCKS: replace(dealt, talking=merging),
        MERGE: merging,
    }
    ways = {name: row_of(times[name], seconds) for name, seconds in predicted.items()}
    for name in (HEADS, BLOCKS):
        ways[name]["from_one"] = from_one(times, predicted[ONE], predicted[name], name)
    return {
        "shape": shape.as_row(),
        "kv_bytes": shape.kv_bytes,
        "bandwidth": {str(n): round(device.bandwidth) for n, device in devices.items()},
        "ways": ways,
    }


def sizes_of(config: LlamaConfig) -> ModelSizes:
    heads = config.num_heads, config.num_kv_heads, config.head_size
    rest = config.hidden_size, config.mlp_size, config.vocab_size
    return ModelSizes("random Llama", config.num_layers, *heads, *rest, FLOAT32)


def engine_row(
    job: Job, times: Times, empty_times: Times, read_bytes: int, link: Link, flops: Sequence[float]
) -> dict[str, object]:
    """Steps on one and on two ranks, and what an empty step takes.

    with_empty  what is measured over what is predicted and the empty step together; messages of
                the empty step are counted there, so those predicted for it are taken off
    """
    devices = devices_of(times, read_bytes, flops)
    whole, small = sizes_of(job.config), sizes_of(empty(job.config))
    names = {1: ONE, 2: TWO}
    predicted = {
        n: decode_time(whole, devices[n], link, job.batch, job.context, heads=n) for n in names
    }
    without = {
        n: decode_time(small, devices[n], link, job.batch, EMPTY_CONTEXT, heads=n) for n in names
    }
    empty_ms = {name: summary(empty_times[name])["median_ms"] for name in names.values()}
    ways = {}
    for n, name in names.items():
        expected = 1e3 * (predicted[n].total - without[n].total) + empty_ms[name]
        row = row_of(times[name], predicted[n]) | {"empty_ms": empty_ms[name]}
        ways[name] = row | {"with_empty": round(row["median_ms"] / expected, 3)}
    ways[TWO]["from_one"] = from_one(
        times, predicted[1], predicted[2], TWO, empty_ms, without[2].talking
    )
    return {
        "batch": job.batch,
        "context": job.context,
        "bandwidth": {str(n): round(device.bandwidth) for n, device in devices.items()},
        "ways": ways,
    }


def measure_engine(
    ranks: Ranks, sizes: Sizes, rounds: int, link: Link, flops: Sequence[float]
) -> dict[str, object]:
    rows, counts = [], {}
    for batch in sizes.batches:
        job = Job(sizes.config, batch, sizes.context, rounds)
        without = Job(empty(sizes.config), batch, EMPTY_CONTEXT, rounds)
        found = ranks.run(on_ranks.measure_engine, job, sizes.read_bytes)
        empties = ranks.run(on_ranks.measure_engine, without, 2**20)
        times = slowest([each for each, _, _ in found])
        empty_times = slowest([each for each, _, _ in empties])
        counts = found[0][1]
        rows.append(engine_row(job, times, empty_times, sizes.read_bytes, link, flops))
    return {
        "model": asdict(sizes_of(sizes.config)),
        "weight_bytes": weight_bytes(sizes_of(sizes.config)),
        "collectives": counts,
        "rows": rows,
    }


def measure(rounds: int, quick: bool) -> dict[str, object]:
    """link, devices, attention, engine: measured and predicted milliseconds, and their ratio."""
    if torch.cuda.device_count() >= 2:
        why = "two ranks would take the GPUs of this machine; this section is of the CPU"
        print(f"left out: {why}")
        return {"left_out": why}
    sizes = QUICK if quick else FULL
    with Ranks(2) as ranks:
        link, of_link = measure_link(ranks, sizes, rounds)
        print(link_table(of_link))
        devices = measure_devices(ranks, sizes, rounds)
        print(devices_table(devices))
        flops = [row["flops"] for row in devices]
        attention = []
        for shape in sizes.shapes:
            times = slowest(ranks.run(on_ranks.measure_attention, shape, rounds, sizes.flush_bytes))
            attention.append(attention_row(shape, times, link, flops))
        print(attention_table(attention))
        engine = measure_engine(ranks, sizes, rounds, link, flops)
        print(engine_table(engine))
    return {
        "rounds": rounds,
        "link": of_link,
        "devices": devices,
        "attention": attention,
        "engine": engine,
    }
