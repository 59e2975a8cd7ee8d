"""What the plots of decode steps on the CPU show is what the results say."""

import pytest
from matplotlib.figure import Figure

from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.noise import measure
from pa_tutorial.bench.peak import peak_gflop_per_s
from pa_tutorial.viz import cpu_measured, style

# ms for 10**6 bytes of K and V: of reading 20 GB/s
SLOWNESS = {
    "read": 0.05,
    "cpu": 0.1,
    "sdpa": 0.3,
    "sdpa_rows": 0.2,
    "gather_own_sdpa": 0.5,
    "gather_heads_x": 0.4,
}


def row(seq_len: int, heads: tuple[int, int] = (16, 16), dtype: str = "float32") -> dict:
    kv_bytes = 2 * seq_len * heads[1] * 64 * 4
    shape = {"name": "context", "num_seqs": 1, "seq_len": seq_len, "head_size": 64}
    shape |= {"num_heads": heads[0], "num_kv_heads": heads[1], "dtype": dtype}
    times = {key: {"median_ms": slow * kv_bytes / 1e6} for key, slow in SLOWNESS.items()}
    return {"shape": shape, "kv_bytes": kv_bytes, "times": times}


def some_results() -> dict:
    heads = (16, 16), (32, 8)
    rows = [row(seq_len, of) for of in heads for seq_len in (8192, 128, 1024)]
    return {"decode": {"rows": rows}}


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_best_of_the_gathering_peers_stands_for_gathering() -> None:
    speeds = cpu_measured.gb_per_s(row(128))
    assert speeds == pytest.approx({"reading": 20, "cpu": 10, "contiguous": 5, "gather": 2.5})


def test_contexts_are_in_order_and_of_one_kind() -> None:
    rows = [*some_results()["decode"]["rows"], row(4096, dtype="bfloat16")]
    found = cpu_measured.contexts(rows, 16, 16)
    assert [r["shape"]["seq_len"] for r in found] == [128, 1024, 8192]
    with pytest.raises(ValueError, match="some with 32 query and 1 KV heads"):
        cpu_measured.contexts(rows, 32, 1)


def test_bandwidth_shows_the_speed_of_each_and_labels_what_was_measured() -> None:
    results = some_results()
    for one in results["decode"]["rows"]:
        del one["times"]["gather_own_sdpa"]
    figure = cpu_measured.draw_bandwidth(results)
    assert "reaches 50% of the speed of reading, the best gather 12%" in figure.get_suptitle()
    for panel in figure.axes:
        (kernel,) = (line for line in panel.lines if line.get_color() == style.INK)
        assert list(kernel.get_xdata()) == [128, 1024, 8192]
        assert list(kernel.get_ydata()) == pytest.approx([10] * 3)
    assert {label for label, *_ in cpu_measured.LINES.values()} == set(texts_of(figure))


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    _, axes = style.new_figure("", 3)
    axes.set_ylim(0, 10)
    cpu_measured.label_ends(axes, {"cpu": 5, "gather": 5.1, "reading": 1}, 0.1)
    places = {text.get_text(): text.get_position()[1] for text in axes.texts}
    gather, kernel, reading = sorted(places.values(), reverse=True)
    assert gather - kernel == pytest.approx(0.1)
    assert reading == pytest.approx(0.1)


def test_noise_shows_every_time_and_both_ways_to_compare() -> None:
    figure = cpu_measured.draw_noise([0, 1, 2], [0.4, 0.5, 9.0], [0.8, 1.3], [0.97, 1.02])
    series, compared = figure.axes
    assert list(series.lines[0].get_ydata()) == [0.4, 0.5, 9.0]
    assert "0.80 to 1.30" in figure.get_suptitle()
    assert "0.97 to 1.02" in figure.get_suptitle()
    assert [list(line.get_ydata()) for line in compared.lines[:2]] == [[0.8, 1.3], [0.97, 1.02]]


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
