"""The results of the section `many_devices` as plain text."""

from collections.abc import Mapping, Sequence

from pa_tutorial.bench.table import table

MEASURED = ["ms", "predicted", "ratio"]
FROM_ONE = "from one"  # over what one rank's own time lets expect


def cells(row: Mapping) -> list[str]:
    return [f"{row['median_ms']:.3f}", f"{row['predicted_ms']:.3f}", f"{row['ratio']:.2f}"]


def from_one_cell(row: Mapping) -> str:
    return f"{row['from_one']:.2f}" if "from_one" in row else "-"


def link_table(link: Mapping) -> str:
    """The link, and the all-reduce of every size."""
    lines = [["all-reduce of two ranks, bytes", *MEASURED]]
    lines += [[f"{row['bytes']:,}", *cells(row)] for row in link["rows"]]
    found = f"{1e6 * link['latency']:.0f} us a hop, {link['bandwidth'] / 1e9:.2f} GB/s"
    return f"{link['name']}: {found}\n{table(lines)}"


def devices_table(devices: Sequence[Mapping]) -> str:
    lines = [["each of so many ranks", "reads GB/s", "GFLOP/s"]]
    for row in devices:
        speeds = row["bandwidth"], row["flops"]
        lines.append([str(row["ranks"]), *(f"{speed / 1e9:.1f}" for speed in speeds)])
    return table(lines)


def attention_table(rows: Sequence[Mapping]) -> str:
    lines = [["attention", *MEASURED, FROM_ONE]]
    for row in rows:
        what = "{num_seqs} x {seq_len:,}: ".format(**row["shape"])
        lines += [
            [what + name, *cells(way), from_one_cell(way)] for name, way in row["ways"].items()
        ]
    return table(lines)


def engine_table(engine: Mapping) -> str:
    lines = [["a step of the engine", *MEASURED, "empty ms", "with empty", FROM_ONE]]
    for row in engine["rows"]:
        for name, way in row["ways"].items():
            rest = [f"{way['empty_ms']:.3f}", f"{way['with_empty']:.2f}", from_one_cell(way)]
            lines.append([f"{row['batch']} x {row['context']:,}: {name}", *cells(way), *rest])
    counted = ", ".join(f"{count} {name}" for name, count in engine["collectives"].items())
    return f"{table(lines)}\nmessages of a step on two ranks: {counted}"
