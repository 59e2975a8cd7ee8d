"""What the figures of notebooks 08 to 10 show is what the kernel did."""

import dataclasses

import numpy as np
import pytest
import torch

from pa_tutorial.cases import CASES, WORKED_EXAMPLE
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.problem import DecodeProblem
from pa_tutorial.simt import global_traffic, shared_traffic
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import keys, maximum, query, rows
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, values_of_block

FLOAT32 = dataclasses.replace(REFERENCE, dtype=torch.float32, head_size=64, block_size=8)
LARGE_BLOCKS = dataclasses.replace(REFERENCE, head_size=64, block_size=32)
PROBLEMS = (WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS)
by_problem = pytest.mark.parametrize(
    "problem", PROBLEMS, ids=("worked_example", "reference", "float32", "blocks_of_32")
)


def blocks_of(problem: DecodeProblem) -> list[int]:
    (table,), _ = problem.block_tables()
    return table


@by_problem
def test_every_vec_of_q_is_loaded_once_by_the_thread_of_the_formula(problem: DecodeProblem) -> None:
    run = run_v1(problem)
    g = run.geometry
    groups = range(min(g.NUM_VECS_PER_THREAD, g.NUM_THREAD_GROUPS))
    assert query.query_moves(run) == [
        (g.THREAD_GROUP_SIZE * group + offset, g.THREAD_GROUP_SIZE * group + offset, offset, group)
        for group in groups
        for offset in range(g.THREAD_GROUP_SIZE)
    ]


def test_other_heads_are_read_from_their_own_place() -> None:
    assert query.query_moves(run_v1(WORKED_EXAMPLE, head=3)) == query.query_moves(
        run_v1(WORKED_EXAMPLE)
    )


@by_problem
def test_the_five_terms_are_the_address_of_the_trace(problem: DecodeProblem) -> None:
    run = run_v1(problem, head=1)
    g = run.geometry
    for block_idx, block in enumerate(blocks_of(problem)[:6]):
        warp = block_idx % g.NUM_WARPS
        for thread in range(warp * WARP_SIZE, warp * WARP_SIZE + WARP_SIZE):
            terms = [
                sum(keys.key_terms(run, thread, block, j).values())
                for j in range(g.NUM_VECS_PER_THREAD)
            ]
            assert keys.key_offsets(run, thread, block) == terms


@by_problem
def test_a_lane_reads_the_rows_and_tokens_of_the_geometry(problem: DecodeProblem) -> None:
    run = run_v1(problem)
    g, reads = run.geometry, values_of_block(run, blocks_of(problem)[0])
    row, vec = reads.the_array().indices(reads.records.address)
    for lane in range(WARP_SIZE):
        mine = reads.records.lane == lane
        assert tuple(np.unique(row[mine])) == g.value_rows(lane)
        assert set(vec[mine] * g.V_VEC_SIZE) == {g.value_tokens(lane)[0]}


@by_problem
def test_the_maximum_arrives_in_every_lane(problem: DecodeProblem) -> None:
    run = run_v1(problem)
    found = run.snapshot(SCORES_DONE)["qk_max"]
    assert (found == found[0]).all()
    assert float(found[0]) == pytest.approx(problem.expected()["qk_max"][0, 0, 0], rel=1e-5)
    for warp in range(run.geometry.NUM_WARPS):
        within, over = maximum.exchanges(run, warp)
        leaders = range(0, WARP_SIZE, run.geometry.THREAD_GROUP_SIZE)
        assert {within[-1].values[lane] for lane in leaders} == {maximum.red_smem(run)[warp]}
        lanes = range(run.geometry.NUM_WARPS)
        assert {over[-1].values[lane] for lane in lanes} == {float(found[0])}


@pytest.mark.parametrize(
    ("num_threads", "levels"),
    [
        (64, [({1: 0}, {0: 0})]),
        (128, [({2: 0, 3: 1}, {0: 0, 1: 1}), ({1: 0}, {0: 0})]),
        (
            256,
            [
                ({4: 0, 5: 1, 6: 2, 7: 3}, {0: 0, 1: 1, 2: 2, 3: 3}),
                ({2: 0, 3: 1}, {0: 0, 1: 1}),
                ({1: 0}, {0: 0}),
            ],
        ),
    ],
)
def test_the_tree_has_a_level_for_each_halving(num_threads: int, levels: list) -> None:
    ready = prepare_v1(**vars(WORKED_EXAMPLE.paged("vllm")), num_threads=num_threads)
    trace = ready.simulate(trace=0).trace
    assert rows.tree_levels(trace, WORKED_EXAMPLE.head_size) == levels


def test_the_plain_layout_takes_twice_the_sectors_and_the_same_bytes() -> None:
    run = run_v1(REFERENCE)
    plain, vllm = keys.plain_key_trace(run), run.trace.only(array="k_cache")
    assert len(plain) == len(vllm)
    counts = [global_traffic(trace).total("sectors") for trace in (plain, vllm)]
    assert counts[0] == 2 * counts[1]


def test_one_vec_of_padding_removes_every_conflict_of_q() -> None:
    for problem, wavefronts in ((REFERENCE, 2), (FLOAT32, 2), (WORKED_EXAMPLE, 1)):
        geometry = run_v1(problem).geometry
        for padding, expected in ((0, wavefronts), (1, 1)):
            table = shared_traffic(query.query_reads(geometry, padding))
            assert table.total("wavefronts") == expected * table.total("requests")


def test_the_values_of_the_page_are_those_of_the_inputs() -> None:
    run = run_v1(WORKED_EXAMPLE, head=3)
    values = WORKED_EXAMPLE.inputs().values[0][:, 1]  # heads 2 and 3 share KV head 1
    found = [[rows.value_of(run, token, row) for row in range(32)] for token in range(11)]
    assert found == values.tolist()


def drawings(run: Run, block: int) -> list:
    return [
        query.draw_query_load(run),
        query.draw_query_banks(run.geometry),
        keys.draw_blocks_of_warps(run),
        keys.draw_key_address(run, 5, block),
        keys.draw_two_layouts(run),
        maximum.draw_maximum(run, 0),
        rows.draw_warp_tree(run),
    ]


@pytest.mark.parametrize("problem", [FLOAT32, LARGE_BLOCKS], ids=("float32", "blocks_of_32"))
def test_the_figures_are_drawn_for_other_geometries(problem: DecodeProblem) -> None:
    run = run_v1(problem)
    for figure in drawings(run, blocks_of(problem)[0]):
        assert figure.get_suptitle()


def test_a_part_of_an_array_holds_only_its_own_accesses() -> None:
    run = run_v1(CASES["decode/shuffled_blocks"])
    g = run.geometry
    (table, _), _ = CASES["decode/shuffled_blocks"].block_tables()
    for block_idx in (0, 5):
        reads = values_of_block(run, table[block_idx])
        assert {*reads.records.warp.tolist()} == {block_idx % g.NUM_WARPS}
        assert len(reads) == g.HEAD_SIZE * g.BLOCK_SIZE
