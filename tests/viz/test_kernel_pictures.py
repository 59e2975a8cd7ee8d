"""What the figures of notebooks 08 to 10 show is what the kernel did."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.simt import global_traffic, shared_traffic
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import keys, poster, qk, query, rows, style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, values_of_block, watched
from pa_tutorial.walk.cases import CASES, WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

FLOAT32 = dataclasses.replace(REFERENCE, dtype=torch.float32, head_size=64, block_size=8)
LARGE_BLOCKS = dataclasses.replace(REFERENCE, head_size=64, block_size=32)
PROBLEMS = (WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS)
by_problem = pytest.mark.parametrize(
    "problem", PROBLEMS, ids=("worked_example", "reference", "float32", "blocks_of_32")
)


def blocks_of(problem: DecodeProblem) -> list[int]:
    (table,), _ = problem.block_tables()
    return table


def wrong_run(problem: DecodeProblem, old: str, new: str) -> Run:
    """A run of the kernel with a piece of its text replaced."""
    prepared = prepare_v1(**vars(problem.paged("vllm")))
    kernel = changed(paged_attention, old, new)(prepared.geometry)
    return watched(dataclasses.replace(prepared, kernel=kernel))


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
def test_logits_vec_is_the_weights_of_the_tokens_of_the_geometry(problem: DecodeProblem) -> None:
    run = run_v1(problem)
    for block in blocks_of(problem)[:6]:
        for lane in range(WARP_SIZE):
            found = tuple(rows.weights_read(run, block, lane))
            assert found == run.geometry.value_tokens(lane)


def test_logits_vec_is_what_the_lane_has_read() -> None:
    """Not what it should have read: every lane reads the first weights of the block here."""
    old, new = "logits, token_idx - start_token_idx)", "logits, block_idx * BLOCK_SIZE)"
    run = wrong_run(REFERENCE, old, new)
    assert run.geometry.value_tokens(3) != tuple(range(8))
    for block in blocks_of(REFERENCE)[:6]:
        assert rows.weights_read(run, block, 3) == [*range(8)]


def test_the_plain_layout_takes_twice_the_sectors_and_the_same_bytes() -> None:
    run = run_v1(REFERENCE)
    plain, vllm = keys.plain_key_trace(run), run.trace.only(array="k_cache")
    assert len(plain) == len(vllm)
    counts = [global_traffic(trace).total("sectors") for trace in (plain, vllm)]
    assert counts[0] == 2 * counts[1]


GEOMETRIES = [
    Geometry(64, block_size, dtype, num_queries_per_kv=2)
    for block_size in (8, 16, 32)
    for dtype in (torch.float16, torch.bfloat16, torch.float32)
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"{g.dtype}-{g.block_size}"[6:])
def test_the_reads_of_q_are_those_of_a_kernel_that_is_right(geometry: Geometry) -> None:
    """With padding too: the output is the same, bit by bit."""
    plain, padded = (query.padded_run(geometry, padding) for padding in (0, 1))
    assert plain.geometry == padded.geometry == geometry
    assert plain.prepared.kernel is paged_attention(geometry, element_loads)  # as it is
    assert torch.isfinite(plain.prepared.out).all()
    assert torch.equal(plain.prepared.out, padded.prepared.out)
    rows_of_q = geometry.THREAD_GROUP_SIZE, geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    for padding in (0, 1):
        reads = query.query_reads(geometry, padding)
        row, vec, element = reads.the_array().indices(reads.records.address)
        assert reads.the_array().shape == (rows_of_q[0], rows_of_q[1] + padding, rows_of_q[2])
        assert (row == reads.records.lane % geometry.THREAD_GROUP_SIZE).all()
        assert (vec < geometry.NUM_VECS_PER_THREAD).all()
        assert (reads.records.warp == 0).all()
        assert reads.num_instructions == geometry.NUM_ELEMS_PER_THREAD
        assert len(np.unique(vec * geometry.VEC_SIZE + element)) == geometry.NUM_ELEMS_PER_THREAD


@pytest.mark.parametrize(
    ("head_size", "block_size", "dtype", "wavefronts"),
    [
        (128, 8, torch.float16, 2),
        (128, 16, torch.float16, 2),
        (128, 16, torch.bfloat16, 2),
        (128, 32, torch.float16, 1),
        (80, 16, torch.float16, 1),
        (112, 16, torch.float16, 1),
        (128, 8, torch.float32, 4),
    ],
)
def test_the_conflicts_of_notebook_09(
    head_size: int, block_size: int, dtype: torch.dtype, wavefronts: int
) -> None:
    geometry = Geometry(head_size, block_size, dtype)
    for padding, expected in ((0, wavefronts), (1, 1)):
        table = shared_traffic(query.query_reads(geometry, padding))
        assert table.total("wavefronts") == expected * table.total("requests")


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


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("head", range(4))
def test_the_page_shows_what_the_oracle_says(head: int) -> None:
    expected = {name: array[0, head] for name, array in WORKED_EXAMPLE.expected().items()}
    run = run_v1(WORKED_EXAMPLE, head)
    lines, texts = rows.softmax_lines(run), texts_of(rows.draw_whole_kernel(run))
    assert list(lines) == ["qk", "exp(qk - qk_max)", "weight"]
    of_oracle = expected["qk"], np.exp(expected["qk"] - expected["qk_max"]), expected["logits"]
    for (name, found), right in zip(lines.items(), of_oracle, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
        first = texts.index(name) + 1
        assert texts[first : first + len(right)] == [f"{number:.2f}" for number in right]


def test_the_page_shows_the_threads_of_each_token() -> None:
    run = run_v1(WORKED_EXAMPLE)
    groups = {token: [*range(4 * token, 4 * token + 4)] for token in range(16)}  # 2 blocks of 8
    assert rows.threads_of_scores(run) == groups
    assert rows.writers(run) == {token: 4 * token for token in range(16)}
    texts = texts_of(rows.draw_whole_kernel(run))
    table = blocks_of(WORKED_EXAMPLE)
    wanted = [f"block {table[0]}: warp 0", f"block {table[1]}: warp 1", "0–3", "28–31", "40–43"]
    assert [text for text in wanted if text not in texts] == []
    assert "44–47" not in texts  # token 11 does not exist


@pytest.mark.parametrize(
    ("old", "new", "read"),
    [
        ("math.exp(logits[i] - qk_max)", "math.exp(logits[i])", rows.softmax_lines),
        ("if thread_group_offset == 0:", "if thread_group_offset == 1:", rows.writers),
        (
            "(thread_group_idx + i * WARP_SIZE) % BLOCK_SIZE",
            "(thread_group_idx + 1) % BLOCK_SIZE",
            rows.threads_of_scores,
        ),
        (
            "range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):\n            # 64 bits",
            "range(start_block_idx + (warp_idx + 3) % 4, end_block_idx, NUM_WARPS):\n"
            "            # 64 bits",
            rows.writers,
        ),
    ],
    ids=("exps", "writers", "tokens", "warps"),
)
def test_the_page_shows_what_a_wrong_kernel_does(
    old: str, new: str, read: Callable[[Run], dict]
) -> None:
    right, wrong = run_v1(WORKED_EXAMPLE), wrong_run(WORKED_EXAMPLE, old, new)
    as_lists = [
        {key: np.asarray(v).tolist() for key, v in read(run).items()} for run in (right, wrong)
    ]
    assert as_lists[0] != as_lists[1]


@by_problem
def test_the_sum_over_the_group_is_the_score_that_the_kernel_has(problem: DecodeProblem) -> None:
    run = run_v1(problem, head=1)
    snapshot, g = run.snapshot(SCORES_DONE), run.geometry
    for group in (0, g.NUM_THREAD_GROUPS // g.NUM_WARPS):  # the first of warp 0, and of warp 1
        *_, last = qk.partial_sums(snapshot, group)
        first = group * g.THREAD_GROUP_SIZE
        found = snapshot["qk"][first : first + g.THREAD_GROUP_SIZE]
        np.testing.assert_allclose(last * run["scale"], found, rtol=1e-5)


def test_the_vecs_of_a_group_are_the_head_and_one_key_token() -> None:
    run, g = run_v1(WORKED_EXAMPLE), run_v1(WORKED_EXAMPLE).geometry
    snapshot, inputs = run.snapshot(SCORES_DONE), WORKED_EXAMPLE.inputs()
    for token in range(11):
        vecs = qk.keys_of_group(snapshot, token)
        for offset in range(g.THREAD_GROUP_SIZE):
            own = list(g.head_elements(offset))
            assert vecs[offset].ravel().tolist() == inputs.keys[0][token, 0, own].tolist()
            assert snapshot["q_vecs"][offset].ravel().tolist() == inputs.q[0, 0, own].tolist()
    shown = texts_of(qk.draw_qk(snapshot, 0, float(run["scale"])))
    of_thread_3 = ["6–7", "14–15", "22–23", "30–31"]
    assert [text for text in shown if text in of_thread_3] == of_thread_3
    assert f"{snapshot['qk'][0]:.3f}" in shown[-1]


def test_the_poster_says_who_is_at_work_and_where_the_barriers_are() -> None:
    run = run_v1(WORKED_EXAMPLE)
    threads = [len(poster.threads_of(run, step)) for step in poster.STEPS]
    assert threads == [16, 64, 128, 11, 11, 64, 128, 32]
    of_sum, of_maximum = poster.shuffles(run.trace, "block_sum"), poster.trace_of(run, "maximum")
    assert of_maximum.only(warp=0).num_instructions == 3 + 2 + 1
    assert of_sum.only(warp=0).num_instructions == 5 + 2 + 1
    steps = [poster.trace_of(run, name).records.instruction for name in poster.NAMES]
    barriers = np.unique(run.trace.only(kind="barrier", warp=0).records.instruction).tolist()
    assert len(barriers) == poster.num_barriers(run) == 9
    q, k, maxima, weights, values, tree, out = (steps[i] for i in (0, 1, 2, 4, 5, 6, 7))
    sums = of_sum.records.instruction
    assert q.max() < barriers[0] < k.min()
    assert maxima.min() < barriers[1] < maxima.max()
    assert sums.min() < barriers[2] < sums.max()
    assert weights.max() < barriers[3] < values.min()
    assert values.max() < barriers[4] < tree.min()
    assert tree.min() < barriers[5] < barriers[8] < out.min()


def test_the_title_of_the_poster_is_true_in_the_trace() -> None:
    """Each element once; nothing else than out is written to global memory."""
    trace = run_v1(WORKED_EXAMPLE).trace
    for name in ("q", "k_cache", "v_cache", "out"):
        addresses = trace.only(array=name).records.address
        assert len(np.unique(addresses)) == len(addresses) > 0
    written = trace.only(space="global", kind="write")
    assert {written.arrays[number].name for number in written.records.array} == {"out"}


@pytest.mark.parametrize("here", poster.NAMES)
def test_the_poster_marks_one_step(here: str) -> None:
    figure = poster.draw_poster(here)
    assert texts_of(figure).count("you are here") == 1
    bold = [text for text in figure.axes[0].texts if text.get_weight() == "bold"]
    strong = {text.get_text() for text in bold if text.get_color() == style.INK}
    assert strong == {"you are here", *(step.words for step in poster.STEPS if step.name == here)}


def test_the_poster_has_the_shapes_of_the_geometry() -> None:
    texts, g = texts_of(poster.draw_poster()), run_v1(WORKED_EXAMPLE).geometry
    assert "you are here" not in texts
    shape = [g.THREAD_GROUP_SIZE, g.NUM_VECS_PER_THREAD, g.VEC_SIZE]
    wanted = [f"q_vecs {shape}", f"logits_vec [{g.V_VEC_SIZE}]", f"accs [{g.NUM_ROWS_PER_THREAD}]"]
    paged = WORKED_EXAMPLE.paged("vllm")
    wanted += [f"k_cache\n{[*paged.k_cache.shape]}", f"v_cache\n{[*paged.v_cache.shape]}"]
    assert [text for text in wanted if text not in texts] == []
    with pytest.raises(ValueError, match="here"):
        poster.draw_poster("somewhere")


def test_the_poster_of_v2_shows_the_first_partition_only() -> None:
    run, texts = poster.run_of_partition(), texts_of(poster.draw_poster_of_v2())
    threads = [len(poster.threads_of(run, step)) for step in poster.STEPS]
    assert threads == [16, 32, 128, 8, 8, 32, 128, 32]
    assert poster.num_barriers(run) == 9
    wanted = {"logits [8]: scores", "exp_sums\nmax_logits", "tmp_out\n[32]", "reduce\nkernel"}
    assert wanted <= {*texts}
    assert not wanted & {*texts_of(poster.draw_poster())}
    assert "5" in texts
    assert "2" not in texts[texts.index("block_tables") :][:3]  # block 2 is the second partition's


def drawings(run: Run, block: int) -> list:
    return [
        query.draw_query_banks(run.geometry),
        keys.draw_blocks_of_warps(run),
        keys.draw_key_address(run, 5, block),
        rows.draw_value_rows(run, block, 3),
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
