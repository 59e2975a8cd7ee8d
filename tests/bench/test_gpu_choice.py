"""v1 or v2, measured: what `make gpu` writes is what `choose` takes."""

import dataclasses
import json

from fake_gpu import CPU, timed_by

from pa_tutorial.bench import gpu_choice
from pa_tutorial.bench.cold_batches import Pool, Workload
from pa_tutorial.bench.gpu_choice import compare, measure, slower, workloads
from pa_tutorial.kernels.choose import Measured, choose

TINY_L2 = dataclasses.replace(CPU, l2_bytes=1)  # two steps are more than it holds
SMALL = Workload(1, 24, num_heads=2, num_kv_heads=2, head_size=32, block_size=8)


def test_grid_has_both_sides_of_vllms_rule_and_of_its_memory() -> None:
    grid = workloads()
    picked = {choose(w.num_seqs, w.num_heads, w.seq_len) for w in grid}
    assert picked == {"v1", "v2"}
    assert len(grid) == 39, "128 x 8192 would need twice the memory"
    assert {w.num_heads for w in grid} == {32}


def test_points_are_what_choose_takes() -> None:
    pool = Pool(SMALL, SMALL.num_blocks(TINY_L2), TINY_L2)
    point = json.loads(json.dumps(measure(pool, SMALL, TINY_L2, rounds=1)))
    measured = Measured(**point)
    assert (measured.num_seqs, measured.num_heads, measured.max_seq_len) == (1, 2, 24)
    assert choose(1, 2, 24, [measured]) == measured.faster
    assert measured.v1 > 0


def test_both_kernels_are_timed_by_one_step(monkeypatch) -> None:
    """The graph of v2 takes four times as long; a time is that of one of its steps."""
    pool = Pool(SMALL, SMALL.num_blocks(CPU), CPU)
    asked = []

    def captured(launches: list) -> object:
        asked.append(len(launches))
        return len(asked)

    monkeypatch.setattr(gpu_choice, "PAGED", dict.fromkeys(gpu_choice.STAGES.values(), dict))
    device = dataclasses.replace(timed_by(lambda replay: 7.0 * replay**2), captured=captured)
    point = measure(pool, SMALL, device, rounds=1)
    assert asked == [SMALL.num_sets(CPU)] * 2
    assert point["v1"] == round(7.0 / asked[0], 5)
    assert point["v2"] == round(28.0 / asked[0], 5)


def test_where_the_rule_is_slower_is_said_with_how_much() -> None:
    points = [
        {"num_seqs": 1, "num_heads": 32, "max_seq_len": 4096, "v1": 1.0, "v2": 2.0},
        {"num_seqs": 64, "num_heads": 32, "max_seq_len": 4096, "v1": 3.0, "v2": 1.0},
        {"num_seqs": 64, "num_heads": 32, "max_seq_len": 8192, "v1": 1.0, "v2": 1.1},
    ]
    found = slower(points)
    assert [(p.num_seqs, rule, times) for p, rule, times in found] == [
        (64, "v1", 3.0),
        (1, "v2", 2.0),
    ]


def test_report(capsys) -> None:
    found = compare(seconds=60, device=TINY_L2, grid=[SMALL], rounds=1)
    assert len(found["points"]) == 1
    assert "of 1 points" in capsys.readouterr().out
    json.dumps(found)


def test_what_does_not_fit_or_has_no_time_is_counted(capsys) -> None:
    no_memory = dataclasses.replace(CPU, free_bytes=0)
    assert compare(seconds=60, device=no_memory, grid=[SMALL])["left_out"] == 1
    assert compare(seconds=-1, device=CPU, grid=[SMALL])["points"] == []
    assert "left out, no time or no memory: 1 of 1 points" in capsys.readouterr().out
