"""What the figures of notebooks 08 to 12 show is what the kernels did."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pa_tutorial.kernels.cuda_backends import naive_backend
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.simt import Trace
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.viz import first_kernel, partitions, poster, query_and_key, rows, wide
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, run_v2, values_of_block
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem
from tests.viz.pictures import require_readable, texts_of

FLOAT32 = replace(REFERENCE, dtype=torch.float32, head_size=64, block_size=8)
LARGE_BLOCKS = replace(REFERENCE, head_size=64, block_size=32)
by_problem = pytest.mark.parametrize(
    "problem",
    [WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS],
    ids=("worked_example", "reference", "float32", "blocks_of_32"),
)


def naive_trace(problem: DecodeProblem) -> Trace:
    return naive_backend.prepare(problem.paged("vllm")).simulate(trace="all").trace


def test_the_grid_names_the_blocks_of_each_sequence() -> None:
    problem = first_kernel.BATCH
    figure = first_kernel.draw_grid(naive_trace(problem), problem.seq_lens)
    for seq_len, table in zip(problem.seq_lens, problem.tables, strict=True):
        line = f"block{'s' * (len(table) > 1)} {', '.join(map(str, table))}"
        here = [text for text in texts_of(figure) if text.split("\n")[0] == line]
        assert len(here) == problem.num_heads
        assert f"{seq_len} of 128 threads" in here[0]


def test_the_addresses_follow_the_block_table_and_the_layout() -> None:
    problem = replace(WORKED_EXAMPLE, tables=((3, 6),))
    table = problem.paged("vllm").block_tables[0].tolist()
    figure = first_kernel.draw_addresses(naive_trace(problem), table, (0, 10))
    layout = VllmLayout(7, 2, head_size=32, block_size=8, dtype=WORKED_EXAMPLE.dtype)
    sums = {str(layout.k_element(*at) * 2) for at in ((3, 0, 0, 0), (6, 0, 2, 0), (6, 0, 2, 31))}
    assert sums | {"block 6, KV head 0"} <= {*texts_of(figure)}
    assert figure.get_suptitle() == (
        "Thread 10 takes token 10: logical block 1, offset 2; the block table says block 6"
    )


@by_problem
def test_terms_rows_and_weights_are_those_of_the_trace(problem: DecodeProblem) -> None:
    """The five terms of an address of K; a lane's rows and tokens of V; its weights."""
    run = run_v1(problem, head=1)
    g = run.geometry
    for block_idx, block in enumerate(problem.block_tables()[0][0][:6]):
        first = block_idx % g.NUM_WARPS * WARP_SIZE
        reads = values_of_block(run, block)
        row, vec = reads.the_array().indices(reads.records.address)
        for lane in range(WARP_SIZE):
            terms = [
                sum(query_and_key.key_terms(run, first + lane, block, j).values())
                for j in range(g.NUM_VECS_PER_THREAD)
            ]
            assert query_and_key.key_offsets(run, first + lane, block) == terms
            mine = reads.records.lane == lane
            assert tuple(np.unique(row[mine])) == g.value_rows(lane)
            assert {*vec[mine] * g.V_VEC_SIZE} == {g.value_tokens(lane)[0]}
            assert tuple(rows.weights_read(run, block, lane)) == g.value_tokens(lane)


def first_reads(run: Run, array: str) -> list[wide.Read]:
    start = run.start_of_block(int(run["block_tables"][0, 0])) * run.geometry.ITEMSIZE
    return sorted(wide.first_reads(run.trace, array, start), key=lambda read: read.byte)


@by_problem
@pytest.mark.parametrize("array", ["k_cache", "v_cache"])
def test_the_first_bytes_are_read_by_the_threads_of_the_formula(problem, array: str) -> None:
    """The first bytes of K are piece 0 of the first tokens, those of V the first rows."""
    elements, vectors = run_v1(problem), run_v1(problem, loads=vector_loads)
    g = elements.geometry
    size = g.VEC_SIZE if array == "k_cache" else g.V_VEC_SIZE
    starts = [*enumerate(range(0, wide.SHOWN, size * g.ITEMSIZE))]
    assert first_reads(vectors, array) == [
        wide.Read(0, thread, start, size * g.ITEMSIZE) for thread, start in starts
    ]
    assert first_reads(elements, array) == [
        wide.Read(e, thread, start + e * g.ITEMSIZE, g.ITEMSIZE)
        for thread, start in starts
        for e in range(size)
    ]


@by_problem
def test_the_sum_over_the_group_is_the_score_that_the_kernel_has(problem: DecodeProblem) -> None:
    run = run_v1(problem, head=1)
    snapshot, g = run.snapshot(SCORES_DONE), run.geometry
    for group in (0, g.NUM_THREAD_GROUPS // g.NUM_WARPS):  # the first of warp 0, and of warp 1
        *_, last = query_and_key.partial_sums(snapshot, group)
        first = group * g.THREAD_GROUP_SIZE
        found = snapshot["qk"][first : first + g.THREAD_GROUP_SIZE]
        np.testing.assert_allclose(last * run["scale"], found, rtol=1e-5)


@pytest.mark.parametrize("head", [0, 3])
def test_the_page_shows_what_the_oracle_says(head: int) -> None:
    expected = {name: array[0, head] for name, array in WORKED_EXAMPLE.expected().items()}
    run = run_v1(WORKED_EXAMPLE, head)
    lines, texts = rows.softmax_lines(run), texts_of(rows.draw_whole_kernel(run))
    of_oracle = expected["qk"], np.exp(expected["qk"] - expected["qk_max"]), expected["logits"]
    for (name, found), right in zip(lines.items(), of_oracle, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
        first = texts.index(name) + 1
        assert texts[first : first + len(right)] == [f"{number:.2f}" for number in right]
    found = [[rows.value_of(run, token, row) for row in range(32)] for token in range(11)]
    assert found == WORKED_EXAMPLE.inputs().values[0][:, head // 2].tolist()
    assert rows.writers(run) == {token: 4 * token for token in range(16)}  # 2 blocks of 8
    ((first, second),) = WORKED_EXAMPLE.tables
    wanted = {f"block {first}: warp 0", f"block {second}: warp 1", "0–3", "28–31", "40–43"}
    assert wanted <= {*texts}
    assert "44–47" not in texts  # token 11 does not exist


AT_WORK = [16, 64, 128, 11, 11, 64, 128, 32], [16, 32, 128, 8, 8, 32, 128, 32]


@pytest.mark.parametrize("at_work", AT_WORK, ids=("v1", "v2"))
def test_the_poster_says_who_is_at_work(at_work: list[int]) -> None:
    run = run_v1(WORKED_EXAMPLE) if at_work is AT_WORK[0] else poster.run_of_partition()
    assert [len(np.unique(poster.trace_of(run, name).threads)) for name in poster.NAMES] == at_work
    of_sum, of_maximum = poster.shuffles(run.trace, "block_sum"), poster.trace_of(run, "maximum")
    counts = [shuffles.only(warp=0).num_instructions for shuffles in (of_maximum, of_sum)]
    assert counts == [3 + 2 + 1, 5 + 2 + 1]


def test_only_the_poster_of_v2_has_what_partitions_leave() -> None:
    v1, v2 = ({*texts_of(poster.draw_poster(partitions=two))} for two in (False, True))
    own = {"logits [8]: scores", "exp_sums\nmax_logits", "tmp_out\n[32]", "reduce\nkernel"}
    assert (own & v1, own & v2) == (set(), own)
    with pytest.raises(ValueError, match="here"):
        poster.draw_poster("somewhere")


def test_a_thread_block_goes_to_the_multiprocessor_that_is_free_first() -> None:
    work = partitions.thread_blocks((16, 5), 2, partition_size=8)  # heads count fastest
    assert work == [(0, 8), (0, 8), (1, 5), (1, 5), (0, 8), (0, 8)]
    pieces = partitions.schedule([(0, 9), (0, 2), (1, 4), (1, 4)], num_multiprocessors=2)
    found = [(piece.multiprocessor, piece.start, piece.end) for piece in pieces]
    assert found == [(0, 0, 9), (1, 0, 2), (1, 2, 6), (1, 6, 10)]
    assert partitions.end_of(pieces) == 10
    assert partitions.busy(pieces, 2) == 19 / 20
    figure = partitions.draw_idle([(4096,)], num_heads=20)
    assert "ends at 4,096\n15 % of the time is work" in texts_of(figure)


@pytest.mark.parametrize("head", [0, 3])
def test_the_split_shows_what_each_partition_computes_and_leaves(head: int) -> None:
    figure = partitions.draw_split(WORKED_EXAMPLE, partition_size=8, head=head)
    texts, oracle = texts_of(figure), WORKED_EXAMPLE.expected()
    require_readable(figure)
    for partition, qk in enumerate((oracle["qk"][0, head, :8], oracle["qk"][0, head, 8:])):
        exps, start = np.exp(qk - qk.max()), texts.index(f"partition {partition}") + 1
        end = texts.index("leaves:", start)
        columns = zip(qk, exps, exps / exps.sum(), strict=True)
        found = [texts[i + 1 : i + 4] for i in range(start, end, 4)]
        assert found == [[f"{number:.2f}" for number in column] for column in columns]
        assert texts[end + 1 : end + 3] == [f"{qk.max():.3f}", f"{exps.sum():.3f}"]


@pytest.mark.parametrize("size", [8, 24])
def test_thread_blocks_have_the_tokens_of_their_partition(size: int) -> None:
    problem = partitions.MIXED
    starts = range(0, max(problem.seq_lens), size)
    expected = [[max(0, min(n - start, size)) for start in starts] for n in problem.seq_lens]
    trace = run_v2(problem, size)[1].trace
    assert partitions.tokens_of_thread_blocks(trace).tolist() == expected
    figure = partitions.draw_mixed(problem, size)
    drawn = [tokens for line in expected for tokens in line if tokens]
    assert [int(text) for text in texts_of(figure) if text.isdigit()] == drawn
    empty, count = sum(line.count(0) for line in expected), len(starts) * len(expected)
    assert figure.get_suptitle().startswith(f"{empty} of {count} thread blocks")
