"""What the plots of decode steps on the CPU show is what the results say."""

import random

import pytest
from matplotlib.figure import Figure

from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.noise import measure
from pa_tutorial.bench.peak import peak_gflop_per_s
from pa_tutorial.viz import cpu_measured, noise, roofline, style

ITEM = {"float32": 4, "bfloat16": 2}
# ms for 10**6 bytes of K and V, at 20 GB/s of reading
SLOWNESS = {
    "cpu": 0.1,
    "sdpa": 0.3,
    "sdpa_rows": 0.2,
    "gather_own_sdpa": 0.5,
    "gather_heads_x": 0.4,
}


def row(
    name: str,
    num_seqs: int,
    seq_len: int,
    heads: tuple[int, int] = (16, 16),
    dtype: str = "float32",
    head_size: int = 128,
    slowness: dict[str, float] = SLOWNESS,
) -> dict:
    kv_bytes = 2 * num_seqs * seq_len * heads[1] * head_size * ITEM[dtype]
    shape = {"name": name, "num_seqs": num_seqs, "seq_len": seq_len, "head_size": head_size}
    shape |= {"num_heads": heads[0], "num_kv_heads": heads[1], "dtype": dtype}
    times = {key: {"median_ms": slow * kv_bytes / 1e6} for key, slow in slowness.items()}
    return {"shape": shape, "kv_bytes": kv_bytes, "read_gb_per_s": 20.0, "times": times}


def some_results() -> dict:
    rows = [
        row(name, num_seqs, seq_len, heads)
        for heads in ((16, 16), (32, 8))
        for name, num_seqs, seq_len in (
            *(("context", 1, seq_len) for seq_len in (8192, 128, 1024)),
            *(("batch", num_seqs, 512) for num_seqs in (16, 1, 4)),
        )
    ]
    rows.append(row("S1", 8, 2048, dtype="bfloat16"))
    rows.append(row("tiny", 1, 64, (4, 2), slowness={"cpu": 9.0, "cuda_v1": 1e5, "cuda_v2": 2e5}))
    rng = random.Random(0)
    series = {
        "seconds": [0.1 * i for i in range(60)],
        "cold_ms": [1.0 + i / 60 + 0.01 * rng.random() for i in range(60)],
        "warm_ms": [0.5] * 60,
    }
    return {"decode": {"rows": rows, "peak_gflop_per_s": 40.0}, "noise": series}


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


FIGURES = (
    cpu_measured.draw_bandwidth,
    cpu_measured.draw_time_by_batch,
    roofline.draw_roofline,
    noise.draw_noise,
)


@pytest.mark.parametrize("draw", FIGURES, ids=lambda draw: draw.__name__)
def test_drawn_twice_a_figure_has_the_same_bytes(draw) -> None:
    results = some_results()
    assert style.svg(draw(results)) == style.svg(draw(results))
    assert len(draw(results).get_suptitle().split()) >= 6


# Bandwidth and time


def test_the_best_of_the_gathering_peers_stands_for_gathering() -> None:
    one = row("context", 1, 128)
    times, speeds = cpu_measured.times_ms(one), cpu_measured.gb_per_s(one)
    assert times["gather"] == times["gather_heads_x"]
    assert times["contiguous"] == pytest.approx(0.2 * one["kv_bytes"] / 1e6), "query heads as rows"
    assert speeds["reading"] == pytest.approx(20)
    assert speeds["cpu"] == pytest.approx(10)


def test_a_sweep_is_in_order_and_has_one_kind_of_heads() -> None:
    rows = some_results()["decode"]["rows"]
    rows += [row("context", 1, n, dtype="bfloat16") for n in (128, 1024, 8192)]
    rows += [row("context", 1, n, head_size=64) for n in (128, 1024, 8192)]
    found = cpu_measured.sweep(rows, "context", "seq_len", 1)
    assert [r["shape"]["seq_len"] for r in found] == [128, 1024, 8192]
    assert {(r["shape"]["dtype"], r["shape"]["head_size"]) for r in found} == {("float32", 128)}
    rows.append(row("context", 1, 16384, head_size=64))
    longer = cpu_measured.sweep(rows, "context", "seq_len", 1)
    assert {r["shape"]["head_size"] for r in longer} == {64}, "the one with the most rows"
    with pytest.raises(ValueError, match="a sweep 'context' with 8 query heads"):
        cpu_measured.sweep(rows, "context", "seq_len", 8)


def test_bandwidth_shows_the_speed_of_each_and_labels_what_was_measured() -> None:
    figure = cpu_measured.draw_bandwidth(some_results())
    left, right = figure.axes
    assert "8,192 tokens" in figure.get_suptitle()
    assert "50% of the speed of reading" in figure.get_suptitle()
    assert "attention at 12%" in figure.get_suptitle()
    for panel in (left, right):
        (kernel,) = (line for line in panel.lines if line.get_color() == style.INK)
        assert list(kernel.get_xdata()) == [128, 1024, 8192]
        assert list(kernel.get_ydata()) == pytest.approx([10] * 3)
    assert "the kernel" in texts_of(figure)
    assert "paged_online in torch" not in texts_of(figure), "it was not measured"


def test_time_by_batch_compares_the_largest_with_the_smallest() -> None:
    results = some_results()
    for one in results["decode"]["rows"]:
        if one["shape"]["name"] == "batch" and one["shape"]["num_seqs"] == 16:
            one["times"]["cpu"]["median_ms"] *= 2
    title = cpu_measured.draw_time_by_batch(results).get_suptitle()
    assert title.startswith("16 times the sequences take the kernel 32 times as long")
    assert "2.0 to 4.0 times its time" in title


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    _, axes = style.new_figure("", 3)
    axes.plot([1, 2], [0, 10])
    found = cpu_measured.heights(axes, {"a": 5, "b": 5.1, "c": 1}, 0.1)
    assert found["b"] - found["a"] == pytest.approx(0.1)
    assert found["a"] > found["c"]
    assert max(cpu_measured.heights(axes, {"a": 9}, 0.1, highest=0.3).values()) == pytest.approx(
        0.3
    )


# Roofline


def test_operations_per_byte_are_the_group_over_the_bytes_of_two_numbers() -> None:
    for heads, dtype, expected in (
        ((16, 16), "float32", 0.5),
        ((32, 8), "float32", 2),
        ((16, 16), "bfloat16", 1),
        ((32, 1), "bfloat16", 32),
    ):
        assert roofline.flops_per_byte(row("S1", 8, 2048, heads, dtype)) == expected


def test_operations_are_those_of_torchs_counter() -> None:
    from pa_tutorial.attention.work import attention_flops_and_bytes

    counted, _ = attention_flops_and_bytes(1, 100, 16, 16, 128)
    assert roofline.flops(row("S1", 1, 100)) == counted


def test_roofline_has_every_stage_that_was_measured() -> None:
    rows = some_results()["decode"]["rows"]
    found = roofline.best_of_stages(rows)
    assert list(found) == ["cuda_v1", "cuda_v2", "cpu"]
    assert roofline.flops_per_byte(found["cpu"]) == 0.5
    kernel = roofline.best_of_kernel(rows)
    assert set(kernel) == {"16/16, 32 bits", "32/8, 32 bits", "16/16, 16 bits"}, "not the tiny one"
    figure = roofline.draw_roofline(some_results())
    assert {"cuda_v1", "cuda_v2", "cpu"} <= set(texts_of(figure))
    assert "With 0.5 operations per byte" in figure.get_suptitle()
    assert "reaches 50% of it" in figure.get_suptitle()
    assert "from 2.0 on" in figure.get_suptitle()


def test_nothing_is_drawn_above_the_roofs_but_text() -> None:
    (axes,) = roofline.draw_roofline(some_results()).axes
    for line in (line for line in axes.lines if line.get_marker() == "o"):
        x, y = (float(values[0]) for values in line.get_data())
        assert y <= min(40.0, 20.0 * x)


# Noise


def test_interleaved_runs_each_once_a_round_and_one_after_another_in_groups() -> None:
    order = noise.interleaved(40)
    assert {frozenset(order[i : i + 2]) for i in range(0, 40, 2)} == {frozenset("AB")}
    assert len({order[i : i + 2] for i in range(0, 40, 2)}) == 2, "in random order"
    assert noise.one_after_another(25) == "A" * 10 + "B" * 10 + "A" * 5


def test_a_drift_spoils_one_after_another_and_not_interleaved() -> None:
    times = [1 + i / 100 for i in range(100)]
    apart = noise.worst(noise.ratios(times, noise.one_after_another(100)))
    together = noise.worst(noise.ratios(times, noise.interleaved(100)))
    assert apart > 0.09
    assert together < 0.02
    assert noise.worst([0.5, 1.2]) == 1, "half is as far away as double"
    with pytest.raises(ValueError, match="at least 20"):
        noise.ratios([1.0] * 19, noise.interleaved(19))


def test_noise_keeps_every_time() -> None:
    shape = Shape("noise", (20,), num_heads=2, num_kv_heads=2, head_size=32)
    found = measure(3, shape)
    assert found["kv_bytes"] == shape.kv_bytes
    assert [len(found[name]) for name in ("seconds", "cold_ms", "warm_ms")] == [3, 3, 3]
    assert found["seconds"] == sorted(found["seconds"])
    assert min(found["cold_ms"] + found["warm_ms"]) > 0
    with pytest.raises(ValueError, match="rounds"):
        measure(0, shape)


def test_peak_counts_a_multiply_and_an_add_for_each_pair(monkeypatch) -> None:
    times = {"product": {"median_ms": 4.0, "lowest_ms": 2.0, "highest_ms": 9.0}}
    monkeypatch.setattr("pa_tutorial.bench.peak.interleaved", lambda *_: times)
    assert peak_gflop_per_s(3, size=100) == 1.0
    with pytest.raises(ValueError, match="size"):
        peak_gflop_per_s(3, size=0)


def test_peak_is_measured() -> None:
    assert peak_gflop_per_s(2, size=512) > 0
