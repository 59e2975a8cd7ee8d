"""The section many_devices: what is made of times that are made up, a quick run, the committed."""

import json
import random
from statistics import median

import pytest
import torch

from pa_tutorial.bench import __main__ as bench
from pa_tutorial.bench import distributed_bench, distributed_ranks
from pa_tutorial.bench.distributed_bench import (
    FULL,
    QUICK,
    all_reduce,
    attention_row,
    attention_shape,
    devices_of,
    empty,
    engine_row,
    link_of,
    sizes_of,
    slowest,
)
from pa_tutorial.bench.distributed_ranks import (
    BLOCKS,
    HEADS,
    MERGE,
    ONE,
    READ_ONE,
    READ_TWO,
    TWO,
    Job,
    require_close,
)
from pa_tutorial.distributed.paper import collectives, weight_bytes
from pa_tutorial.distributed.sizes import Link
from pa_tutorial.engine.model import Llama
from pa_tutorial.viz import distributed_measured
from pa_tutorial.viz.cpu_measured import load

LINK = Link("made up", bandwidth=2e9, latency=1e-4)
FLOPS = [1e15, 1e15]  # computing never counts


# Made-up times ----------------------------------------------------------------------------------


def test_latency_and_bandwidth_of_a_link_are_found_again() -> None:
    milliseconds = {b: 1e3 * all_reduce(b).seconds(LINK) for b in FULL.message_bytes}
    found = link_of(milliseconds)
    assert found.latency == pytest.approx(LINK.latency, rel=0.01)
    assert found.bandwidth == pytest.approx(LINK.bandwidth, rel=0.01)


def test_one_time_that_is_far_off_hardly_moves_the_link() -> None:
    milliseconds = {b: 1e3 * all_reduce(b).seconds(LINK) for b in FULL.message_bytes}
    found = link_of(milliseconds | {64: 99.0, 2**22: 999.0})
    assert found.latency == pytest.approx(LINK.latency, rel=0.01)
    assert found.bandwidth == pytest.approx(LINK.bandwidth, rel=0.01)


def test_a_round_takes_as_long_as_its_slowest_rank() -> None:
    assert slowest([{"a": [1.0, 5.0]}, {"a": [3.0, 2.0]}]) == {"a": [3.0, 5.0]}


def test_a_device_of_two_is_what_each_gets_while_both_read() -> None:
    devices = devices_of({READ_ONE: [1.0, 1.0, 9.0], READ_TWO: [2.0]}, 10**6, [5.0, 4.0])
    assert (devices[1].bandwidth, devices[2].bandwidth) == pytest.approx((1e9, 5e8))
    assert (devices[1].flops, devices[2].flops) == (5.0, 4.0)


def attention_times(slower: float, merging_ms: float) -> dict[str, list[float]]:
    """Both ranks read at 1 GB/s, also together; attention is slower than reading by a factor."""
    half = attention_shape(4, 4096).kv_bytes / 2 / 1e6  # ms
    return {
        READ_ONE: [half],
        READ_TWO: [half],
        ONE: [slower * 2 * half],
        HEADS: [slower * half],
        BLOCKS: [slower * half + merging_ms],
        MERGE: [merging_ms],
    }


def merging_ms() -> float:
    """Two all-reduces of 1 and of 1 + 128 numbers for 4 sequences with 8 heads."""
    return 1e3 * (4 * LINK.latency + 4 * 8 * 4 * (1 + 129) / LINK.bandwidth)


@pytest.mark.parametrize("slower", [1.0, 2.5])
def test_attention_as_predicted_has_ratio_one_and_a_slower_kernel_only_its_factor(
    slower: float,
) -> None:
    times = attention_times(slower, merging_ms())
    ways = attention_row(attention_shape(4, 4096), times, LINK, FLOPS)["ways"]
    assert ways[ONE]["ratio"] == ways[HEADS]["ratio"] == pytest.approx(slower, abs=0.001)
    assert ways[MERGE]["ratio"] == pytest.approx(1, abs=0.001)
    assert 1 <= ways[BLOCKS]["ratio"] <= slower
    assert [ways[n]["from_one"] for n in (HEADS, BLOCKS)] == pytest.approx([1, 1], abs=0.001)


def engine_times(slower: float, empty_ms: dict[str, float]) -> dict:
    """A rank reads 1 GB/s. Two ranks divide matrices, K and V; embedding and norms they do not."""
    model, batch, context = sizes_of(FULL.config), 16, 512
    small = sizes_of(empty(FULL.config))
    kv = 2 * 8 * 4 * 64 * 4 * batch * context
    times = {READ_ONE: [1.0], READ_TWO: [1.0]}
    for n, name in ((1, ONE), (2, TWO)):
        read_ms = (weight_bytes(model, n, embedding_rows=batch) + kv / n) / 1e6
        talking = [
            sum(c.times * c.seconds(LINK) for c in collectives(each, batch, n))
            for each in (model, small)
        ]
        times[name] = [slower * read_ms + 1e3 * (talking[0] - talking[1]) + empty_ms[name]]
    return times


def engine_ways(times: dict, empty_ms: dict[str, float]) -> dict:
    job = Job(FULL.config, 16, 512, rounds=1)
    empty_times = {name: [ms] for name, ms in empty_ms.items()}
    return engine_row(job, times, empty_times, 10**6, LINK, FLOPS)["ways"]


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_step_that_two_ranks_divide_is_what_one_rank_lets_expect(slower: float) -> None:
    empty_ms = {ONE: 3.0, TWO: 40.0}
    ways = engine_ways(engine_times(slower, empty_ms), empty_ms)
    assert ways[TWO]["from_one"] == pytest.approx(1, abs=0.002)
    assert ways[ONE]["with_empty"] == pytest.approx(slower, rel=0.02)
    assert ways[TWO]["empty_ms"] == 40.0


def test_a_step_that_two_ranks_do_not_divide_shows() -> None:
    empty_ms = {ONE: 3.0, TWO: 40.0}
    times = engine_times(1.0, empty_ms)
    times[TWO] = [times[ONE][0] + 37.0]
    assert engine_ways(times, empty_ms)[TWO]["from_one"] > 1.5


def test_sizes_of_the_engine_are_those_of_its_model() -> None:
    model = Llama(QUICK.config)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(sizes_of(QUICK.config)) == 4 * numbers


def test_attention_that_differs_or_is_nan_is_an_error_that_names_the_way() -> None:
    out = torch.ones(2)
    require_close("x", out + 1e-6, out)
    for wrong in (out + 1e-3, out * float("nan")):
        with pytest.raises(ArithmeticError, match="by heads, attention differs"):
            require_close("by heads", wrong, out)


def test_both_ranks_go_through_the_ways_in_the_same_order(monkeypatch) -> None:
    """Else one would wait for the other in different collectives."""
    monkeypatch.setattr(distributed_ranks.dist, "barrier", lambda **_: None)

    class Group:
        control = None

    def order(_rank: int) -> list[str]:
        random.seed(_rank)  # what a rank drew before may not matter
        done: list[str] = []
        ways = {name: lambda name=name: done.append(name) or 1.0 for name in "abc"}
        times = distributed_ranks.taken(Group(), ways, rounds=4)
        assert all(len(each) == 4 for each in times.values()), "the first round is not counted"
        return done

    assert order(0) == order(1)
    assert len(order(0)) == 15


def test_left_out_where_the_ranks_would_take_gpus(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed_bench.measure(1, quick=True).keys() == {"left_out"}
    assert "left out" in capsys.readouterr().out


# A quick run, and the committed one -------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("benchmarks")
    bench.main(["--quick", "--only", "many_devices", "--out", str(folder)])
    (path,) = folder.iterdir()
    return json.loads(path.read_text(encoding="utf-8"))


def test_quick_run_has_every_part_and_every_message_that_is_predicted(quick: dict) -> None:
    section = quick["many_devices"]
    assert section.keys() == {"rounds", "link", "devices", "attention", "engine"}
    assert [row["bytes"] for row in section["link"]["rows"]] == list(QUICK.message_bytes)
    assert set(section["attention"][0]["ways"]) == {ONE, HEADS, BLOCKS, MERGE}
    counts = section["engine"]["collectives"]
    joined, gathered = collectives(sizes_of(QUICK.config), 2, heads=2)[:2]
    assert counts["all_reduce"] == joined.times
    assert counts["all_gather"] == gathered.times + 1  # in which the ranks agree on the batch


def test_figure_can_be_drawn_from_any_run(quick: dict) -> None:
    figure = distributed_measured.draw_ranks(quick)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == pytest.approx(7.2)
    assert len(figure.get_suptitle().split()) >= 6


def test_results_without_the_section_are_refused() -> None:
    with pytest.raises(ValueError, match="results is without many_devices"):
        distributed_measured.draw_ranks({"many_devices": {"left_out": "x"}})


@pytest.fixture(scope="module")
def committed() -> dict:
    return load()["many_devices"]


def test_committed_link_is_latency_and_bandwidth_to_within_a_factor_of_two(committed: dict) -> None:
    assert all(0.5 < row["ratio"] < 2 for row in committed["link"]["rows"])


def test_committed_times_are_above_the_bound_of_reading(committed: dict) -> None:
    """Reading and computing are lower bounds; a step far below them would be a mistake."""
    rows = [*committed["attention"], *committed["engine"]["rows"]]
    assert all(row["ways"][ONE]["ratio"] > 0.9 for row in rows)


def test_committed_attention_by_heads_is_divided_by_two_to_within_a_factor_of_two(
    committed: dict,
) -> None:
    ratios = [row["ways"][HEADS]["from_one"] for row in committed["attention"]]
    assert 0.6 < median(ratios) < 2
