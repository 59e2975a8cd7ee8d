"""Results as plain text."""

from collections.abc import Mapping, Sequence

from pa_tutorial.bench.cpu_decode import READ
from pa_tutorial.bench.cpu_targets import ANY, CONTIGUOUS, fastest


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    )


def shape_in_words(shape: Mapping[str, object]) -> str:
    return (
        "{name}: {num_seqs} x {seq_len}, {num_heads}/{num_kv_heads} heads of {head_size}, {dtype}"
    ).format(**shape)


def decode_table(rows: Sequence[Mapping]) -> str:
    """The kernel beside the read bound, the best on contiguous K and V, and the best gather."""
    lines = [["shape", "MiB", "read ms", "cpu ms", "of bound", "contiguous ms", "gather ms"]]
    for row in rows:
        times = row["times"]
        read, cpu = (times[name]["median_ms"] for name in (READ, "cpu"))
        lines.append(
            [
                shape_in_words(row["shape"]),
                f"{row['kv_bytes'] / 2**20:.1f}",
                f"{read:.3f}",
                f"{cpu:.3f}",
                f"{read / cpu:.2f}",
                *(best_of(times, names) for names in (CONTIGUOUS, ANY)),
            ]
        )
    return table(lines)


def best_of(times: Mapping, names: Sequence[str]) -> str:
    """The fastest that was measured, or a dash."""
    return f"{fastest(times, names):.3f}" if times.keys() & set(names) else "-"


def targets_table(rows: Sequence[Mapping]) -> str:
    """Every target with its ratio, what is asked, and whether it is reached."""
    lines = [["target", "ratio", "asked", "reached", "runs"]]
    for row in rows:
        asked = "-"
        if row["must_reach"] is not None:
            asked = f"{'at least' if row['at_least'] else 'at most'} {row['must_reach']}"
        lines.append(
            [
                f"{shape_in_words(row['shape'])}: {row['name']}",
                f"{row['ratio']:.2f}",
                asked,
                {True: "yes", False: "NO", None: "-"}[row["reached"]],
                f"{min(row['five_runs']):.2f} to {max(row['five_runs']):.2f}",
            ]
        )
    return table(lines)
