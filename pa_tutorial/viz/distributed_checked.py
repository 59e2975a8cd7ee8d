"""The model on paper beside what was measured: decode attention on one machine."""

from statistics import median

from matplotlib.figure import Figure

from pa_tutorial.distributed.paper import attention_time
from pa_tutorial.distributed.sizes import Device, ModelSizes
from pa_tutorial.viz import style
from pa_tutorial.viz.cpu_measured import BITS, LARGE, Row, group_of, large, load


def this_machine(decode: dict) -> Device:
    """The one that measured: how fast it reads, and how fast it multiplies matrices."""
    read = median(row["read_gb_per_s"] for row in large(decode["rows"]))
    return Device("this machine", 1e9 * read, 0, 1e9 * decode["peak_gflop_per_s"])


def attention_of(row: Row) -> ModelSizes:
    """One layer with the heads of a measured shape, and hardly any weights."""
    shape = row["shape"]
    heads = shape["num_heads"], shape["num_kv_heads"], shape["head_size"]
    itemsize = BITS[shape["dtype"]] // 8
    return ModelSizes("attention", 1, *heads, 1, heads[0], heads[0], itemsize)


def measured_over_predicted(row: Row, machine: Device) -> float:
    """How many times the predicted time the CPU kernel took."""
    shape = row["shape"]
    times = attention_time(attention_of(row), machine, shape["num_seqs"], shape["seq_len"])
    return row["times"]["cpu"]["median_ms"] / (1e3 * times.total)


@style.styled
def draw_checked(results: dict | None = None) -> Figure:
    """Measured over predicted time of the CPU kernel, by bytes of K and V and by their sharing."""
    decode = (results or load())["decode"]
    machine = this_machine(decode)
    found: dict[int, dict[int, list[float]]] = {}
    for row in decode["rows"]:
        if "cpu" in row["times"] and row["shape"]["name"] != "tiny":
            by_size = found.setdefault(group_of(row), {})
            by_size.setdefault(row["kv_bytes"], []).append(measured_over_predicted(row, machine))

    def beyond(groups: set[int]) -> list[float]:
        return [r for g in groups for b, all_r in found[g].items() if b >= LARGE for r in all_r]

    alone, shared = beyond({1}), beyond(set(found) - {1})
    figure, axes = style.new_figure(
        f"Of {LARGE // 2**20} MiB of K and V or more, attention took {min(alone):.1f} to "
        f"{max(alone):.1f} times the predicted time;\nwith shared KV heads up to {max(shared):.1f} "
        "times, and small steps far longer: starting threads is not counted",
        3.2,
    )
    looks = {1: ("o", style.INK), 4: ("s", style.QUIET), 8: ("^", style.QUIET)}
    for index, (group, by_size) in enumerate(sorted(found.items())):
        marker, color = looks.get(group, ("x", style.QUIET))
        face = color if group == 1 else "none"
        points = [(size / 2**20, ratio) for size, ratios in by_size.items() for ratio in ratios]
        axes.plot(*zip(*points, strict=True), marker, ms=4.5, color=color, markerfacecolor=face)
        heads = "1 query head a KV head" if group == 1 else f"{group} query heads a KV head"
        where = {"transform": axes.transAxes, "va": "center", "color": color}
        axes.plot(0.62, 0.93 - 0.09 * index, marker, ms=4.5, color=color, markerfacecolor=face,
                  transform=axes.transAxes)  # fmt: skip
        axes.text(0.65, 0.93 - 0.09 * index, heads, **where)
    axes.axhline(1, color=style.INK, linewidth=1)
    axes.axvline(LARGE / 2**20, ymax=0.6, color=style.QUIET, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 3, 5, 10, 20, 30], ["1", "2", "3", "5", "10", "20", "30"])
    axes.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.set_xlabel("MiB of K and V (the CPU kernel, cold caches)")
    axes.set_ylabel("measured / predicted")
    return figure
