"""Whether the time of the CPU kernel grows as the work does; what it needs beside the cache."""

from collections.abc import Iterable
from dataclasses import replace

from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches
from pa_tutorial.bench.cpu_shapes import (
    BATCHES,
    CONTEXT_OF_BATCHES,
    CONTEXTS,
    GQA,
    MAIN,
    Shape,
    most_kv_bytes,
    that_fit,
)
from pa_tutorial.bench.cpu_stages import cpu
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.kernels.cpu_launch import prepare_cpu

HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_size": 64}
SHARES = 4  # of the batch, each with room for two partitions
ONE_TOKEN = Shape("one token", (1,), **HEADS)


def growth(shapes: Iterable[Shape], unit: str, rounds: int) -> dict[str, object]:
    """Times of the kernel over several shapes, all in the same rounds.

    unit     "token" or "seq": what the time is divided by
    returns  rows: size, ms and microseconds a unit, as measured and without the fixed cost of a
             call; fixed_us: that cost, the time of one token; spread: the largest time a unit,
             without the fixed cost, by the smallest, or None if noise is larger than the smallest;
             left_out: what memory has no room for
    """
    fitting, left_out = that_fit(shapes, most_kv_bytes())
    steps = {"fixed": cpu(Batch(ONE_TOKEN))}
    steps |= {str(shape): cpu(Batch(shape)) for shape in fitting}
    times = interleaved(steps, rounds, ColdCaches())
    fixed_ms = times["fixed"]["median_ms"]
    rows = []
    for shape in fitting:
        size = sum(shape.seq_lens) if unit == "token" else len(shape.seq_lens)
        taken = times[str(shape)]["median_ms"]
        rows.append(
            {
                unit + "s": size,
                "ms": taken,
                f"us_per_{unit}": round(1e3 * taken / size, 4),
                "without_fixed_us": round(1e3 * (taken - fixed_ms) / size, 4),
            }
        )
    without = [row["without_fixed_us"] for row in rows]
    return {
        "rows": rows,
        "fixed_us": round(1e3 * fixed_ms, 1),
        "spread": round(max(without) / min(without), 2) if min(without) > 0 else None,
        "left_out": left_out,
    }


def linearity(
    rounds: int, contexts: tuple[int, ...] = CONTEXTS, batches: tuple[int, ...] = BATCHES
) -> dict[str, object]:
    """By the length of one sequence, and by the number of sequences of 512 tokens."""
    long = [Shape("context", (seq_len,), **HEADS) for seq_len in contexts]
    many = [Shape("batch", (CONTEXT_OF_BATCHES,) * num_seqs, **HEADS) for num_seqs in batches]
    return {"context": growth(long, "token", rounds), "batch": growth(many, "seq", rounds)}


def memory(shapes: Iterable[Shape] = (MAIN[0], GQA)) -> list[dict[str, object]]:
    """Bytes that the kernel needs beside the cache: in all, and for each partition."""
    rows = []
    for shape in shapes:
        short = replace(shape, seq_lens=(1,) * len(shape.seq_lens))  # their lengths do not matter
        prepared = prepare_cpu(*Batch(short).arguments, num_shares=SHARES)
        num_bytes, partitions = prepared.bytes_beside_the_cache, 2 * SHARES
        rows.append(
            {
                "shape": shape.as_row(),
                "bytes": num_bytes,
                "partitions": partitions,
                "bytes_per_partition": round(num_bytes / partitions),
            }
        )
    return rows
