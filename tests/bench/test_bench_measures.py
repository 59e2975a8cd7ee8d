"""What notebooks 13 and 15 show was measured: steps of the CPU kernel, noise, the peak."""

import pytest

from pa_tutorial.bench import cpu_steps
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.noise import measure
from pa_tutorial.bench.peak import peak_gflop_per_s
from pa_tutorial.kernels.cpu_steps import STEPS


def test_measure_has_every_step_and_the_bound() -> None:
    (row,) = cpu_steps.measure(2, cpu_steps.QUICK)
    assert list(row["times"]) == list(STEPS)
    assert row["read_ms"] > 0
    for time in row["times"].values():
        assert 0 < time["lowest_ms"] <= time["median_ms"] <= time["highest_ms"]


def test_mixed_batch_has_about_as_many_tokens_as_s1() -> None:
    """So that their times can be compared."""
    assert abs(sum(cpu_steps.MIXED_LENS) / sum(cpu_steps.S1.seq_lens) - 1) < 0.03


def test_noise_keeps_every_time() -> None:
    shape = Shape("noise", (20,), num_heads=2, num_kv_heads=2, head_size=32)
    found = measure(3, shape)
    assert found["kv_bytes"] == shape.kv_bytes
    assert [len(found[name]) for name in ("seconds", "cold_ms", "warm_ms")] == [3, 3, 3]
    assert found["seconds"] == sorted(found["seconds"])
    assert min(found["cold_ms"] + found["warm_ms"]) > 0
    with pytest.raises(ValueError, match="rounds"):
        measure(0, shape)


def test_peak_counts_a_multiply_and_an_add_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"product": {"median_ms": 4.0, "lowest_ms": 2.0, "highest_ms": 9.0}}
    monkeypatch.setattr("pa_tutorial.bench.peak.interleaved", lambda *_: times)
    assert peak_gflop_per_s(3, size=100) == 1.0
    with pytest.raises(ValueError, match="size"):
        peak_gflop_per_s(3, size=0)


def test_peak_is_measured() -> None:
    assert peak_gflop_per_s(2, size=512) > 0
