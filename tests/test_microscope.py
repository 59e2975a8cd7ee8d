"""The microscope's data: nothing of the trace is lost, and panes name what is there."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from numba import cuda, float32
from simt_kernels.example import EXAMPLES

from pa_tutorial.kernels.launch import prepare_naive, prepare_v1, prepare_v2
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.simt import Report, Trace, global_traffic, launch, shared_traffic
from pa_tutorial.simt.trace import NO_LANE
from pa_tutorial.simt.traffic import costs
from pa_tutorial.viz.kernel_runs import REFERENCE, run_v1
from pa_tutorial.viz.microscope import Axis, Pane, microscope
from pa_tutorial.viz.microscope.data import TYPES, aliases, packed
from pa_tutorial.viz.microscope.page import STATIC
from pa_tutorial.viz.microscope.paged import paged_panes, reference_microscope, run_microscope

ROOT = Path(__file__).parent.parent
DTYPES = {name: kind for kind, name in TYPES.items()}


def unpacked(column: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column["data"]), "<" + DTYPES[column["type"]])


def traced(name: str) -> Report:
    example = EXAMPLES[name]
    sizes = example.grid, example.block
    arguments = {"shared_bytes": example.shared_bytes, "checks": (), "trace": 0}
    return launch(example.kernel, *sizes, *example.draw(), **arguments)


# Nothing is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_knows_every_record_of_the_trace(name: str) -> None:
    report = traced(name)
    if not len(report.trace):
        pytest.skip("this kernel touches nothing")
    data = microscope(report).data
    columns = {key: unpacked(column) for key, column in data["columns"].items()}
    patterns = columns["patterns"].reshape(-1, 32)
    found = []
    for i, lanes in enumerate(columns["lanes"].tolist()):
        for lane in (lane for lane in range(32) if lanes >> lane & 1):
            value = columns["base"][i] + patterns[columns["pattern"][i], lane]
            array = data["arrays"][columns["array"][i] - 1]["name"] if columns["array"][i] else ""
            fields = [columns[f][i] for f in ("number", "warp", "kind", "space", "num_bytes")]
            place = data["places"][columns["place"][i]]["text"]
            way = [tuple(step) for step in data["ways"][columns["way"][i]]]
            found.append((*map(int, fields), lane, int(value), array, place, tuple(way)))
    trace = report.trace
    expected = [
        (
            *(int(r[f]) for f in ("instruction", "warp", "kind", "space", "num_bytes")),
            int(r.lane),
            int(r.address if r.space else max(r.source_lane, 0)),
            trace.arrays[r.array].name if r.array >= 0 else "",
            trace.sites[r.place].text,
            trace.ways[r.way],
        )
        for r in trace.records
    ]
    assert found == expected


def test_shuffles_keep_the_lane_that_is_read() -> None:
    trace = run_v1(REFERENCE).trace.only(kind="shuffle")
    assert np.all(trace.records.source_lane != NO_LANE)
    assert not np.array_equal(trace.records.source_lane, trace.records.lane)


@pytest.mark.parametrize("values", [[0, 255], [0, 256], [-1, 3], [2**31], [2**40, -5], []])
def test_numbers_survive_packing(values: list[int]) -> None:
    assert unpacked(packed(np.array(values, np.int64))).tolist() == values


def test_costs_are_those_of_the_tables() -> None:
    trace = run_v1(REFERENCE, loads=vector_loads).trace
    found = costs(trace)
    shared, of_global = shared_traffic(trace), global_traffic(trace)
    assert found["sectors"].sum() == of_global.total("sectors")
    assert found["ideal_sectors"].sum() == of_global.total("ideal sectors")
    assert found["wavefronts"].sum() == shared.total("wavefronts")
    assert found["ideal"].sum() == shared.total("ideal")
    for warp in range(4):
        part = trace.only(warp=warp)
        numbers = np.unique(part.records.instruction)
        of_warp = np.isin(np.unique(trace.records.instruction), numbers)
        assert found["sectors"][of_warp].sum() == global_traffic(part).total("sectors")


def test_other_names_of_an_array() -> None:
    assert aliases(run_v1(REFERENCE).trace) == {"shared_mem": ["logits", "out_smem"]}


# Panes ------------------------------------------------------------------------------------------


def labels_of(pane: Pane, place: tuple[int, ...]) -> dict[str, int]:
    """Of the element at (tile, row, column places …), by hand."""
    tile, *at = place
    axes = (*pane.rows, *pane.columns)
    values = {**pane.tiles[tile].values, **{a.name: n for a, n in zip(axes, at, strict=True)}}
    return {
        name: sum(values[t] * f for t, f in terms.items()) for name, terms in pane.labels.items()
    }


def element_of(pane: Pane, place: tuple[int, ...]) -> int:
    tile, *at = place
    axes = (*pane.rows, *pane.columns)
    return pane.tiles[tile].start + sum(a.stride * n for a, n in zip(axes, at, strict=True))


@pytest.mark.parametrize("head", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_panes_of_k_and_v_say_what_the_layout_says(head: int, dtype: torch.dtype) -> None:
    """Every element of every tile, against VllmLayout."""
    sizes = {"num_heads": 6, "num_kv_heads": 3, "head_size": 32, "block_size": 8}
    problem = replace(REFERENCE, seq_lens=(5, 19), dtype=dtype, **sizes)
    inputs = problem.paged("vllm")
    ready = prepare_v1(**vars(inputs))
    _, k_pane, v_pane, _ = paged_panes(ready, (head, 1, 0))
    num_blocks = inputs.k_cache.shape[0]
    layout = VllmLayout(num_blocks, 3, 32, 8, dtype)
    for pane, element in ((k_pane, layout.k_element), (v_pane, layout.v_element)):
        sizes = [a.size for a in (*pane.rows, *pane.columns)]
        seen = set()
        for place in np.ndindex(len(pane.tiles), *sizes):
            labels = labels_of(pane, place)
            block = int(inputs.block_tables[1, labels["logical block"]])
            assert labels["physical block"] == block
            assert labels["token"] == labels["logical block"] * 8 + labels["offset"]
            assert labels["KV head"] == head // 2
            at = (block, head // 2, labels["offset"], labels["element"])
            assert element_of(pane, place) == element(*at)
            seen.add((labels["token"], labels["element"]))
        assert seen == {(token, e) for token in range(24) for e in range(32)}


def test_a_partition_has_the_blocks_of_its_tokens() -> None:
    problem = replace(REFERENCE, seq_lens=(40, 170))
    ready = prepare_v2(**vars(problem.paged("vllm")), partition_size=64).partitions
    for partition, logical in ((0, range(4)), (1, range(4, 8)), (2, range(8, 11))):
        pane = paged_panes(ready, (1, 1, partition))[1]
        assert [tile.values["logical block"] for tile in pane.tiles] == list(logical)
    out = paged_panes(ready, (1, 1, 2))[3]
    assert out.tiles[0].start == ((1 * 2 + 1) * 3 + 2) * 128


def test_every_access_of_the_kernel_lies_in_a_pane() -> None:
    """q, K, V and out of each thread block: where the kernel goes, the pane has a cell."""
    problem = replace(REFERENCE, seq_lens=(70, 33))
    ready = prepare_v2(**vars(problem.paged("vllm")), partition_size=32).partitions
    report = ready.simulate(trace="all")
    for block in np.ndindex(*ready.grid[::-1]):
        index = tuple(int(i) for i in block[::-1])
        if index[2] * 32 >= problem.seq_lens[index[1]]:
            continue  # the sequence ends before this partition
        trace = report.trace.only(block=index)
        for pane in paged_panes(ready, index):
            part = trace.only(array=pane.array)
            array = part.the_array()
            touched = (part.records.address - array.address) // array.dtype.itemsize
            axes = [np.arange(a.size) * a.stride for a in (*pane.rows, *pane.columns)]
            inside = sum(np.ix_(*axes)).ravel().tolist()
            cells = {tile.start + i for tile in pane.tiles for i in inside}
            assert len(part)
            assert set(touched.tolist()) <= cells, (index, pane.array)


def test_a_block_that_stands_twice_in_the_table_is_one_tile() -> None:
    inputs = REFERENCE.paged("vllm")
    inputs.block_tables[0, 3] = inputs.block_tables[0, 1]
    pane = paged_panes(prepare_v1(**vars(inputs)))[1]
    assert len(pane.tiles) == 10
    assert pane.tiles[1].title.startswith("1 and 3 →")


@cuda.jit
def far_apart(out, a):
    t = cuda.threadIdx.x
    out[t, 1] = a[t] + a[900 + t]


def test_memory_that_nobody_touches_is_left_out() -> None:
    report = launch(far_apart, 1, 8, np.zeros((8, 4), np.float32), np.zeros(2000), trace=0)
    panes = {pane.array: pane for pane in microscope(report).panes}
    a, out = panes["a"], panes["out"]
    starts = [tile.start for tile in a.tiles]
    assert len(starts) == 2
    covered = {s + i for s in starts for i in range(a.rows[0].size * 32)}
    assert {*range(8), *range(900, 908)} <= covered
    assert len(covered) <= 2 * 16 * 32
    assert (out.rows[0].size, out.columns[0].size) == (8, 4)


# Bad input --------------------------------------------------------------------------------------


def test_what_cannot_be_shown_is_refused() -> None:
    out = np.zeros((8, 4), np.float32)
    untraced = launch(far_apart, 1, 8, out, np.zeros(2000))
    with pytest.raises(ValueError, match="report is without a trace"):
        microscope(untraced)
    report = launch(far_apart, 3, 8, out, np.zeros(2000), trace=1, checks=())
    with pytest.raises(ValueError, match="block is 2; it must be a traced one: 1"):
        microscope(report, block=2)
    with pytest.raises(ValueError, match="at is 99; it must be a warp instruction"):
        microscope(report, at=99)
    with pytest.raises(ValueError, match="at is a trace of nothing"):
        microscope(report, at=report.trace.only(kind="atomic"))
    with pytest.raises(ValueError, match="lane is 32; it must be 0 to 31"):
        microscope(report, lane=32)
    row = (Axis("row", 1, 1),)
    with pytest.raises(ValueError, match="panes: the array is 'b'; it must be one of"):
        microscope(report, panes=[Pane("b", "", row, ())])
    with pytest.raises(ValueError, match="term of the label 'token' of a is 'offset'"):
        Pane("a", "", row, (), labels={"token": {"offset": 1}})
    with pytest.raises(ValueError, match="tiles is empty"):
        Pane("a", "", row, (), tiles=())
    with pytest.raises(ValueError, match="there is no thread block 7"):
        microscope(report, block=7)


def test_panes_are_for_the_paged_kernel() -> None:
    ready = prepare_v1(**vars(REFERENCE.paged("vllm")))
    with pytest.raises(ValueError, match="block is \\(2, 0, 0\\); it must be in the grid"):
        paged_panes(ready, (2, 0, 0))
    naive = prepare_naive(**vars(REFERENCE.paged("vllm")))
    with pytest.raises(ValueError, match="ready is a launch of another kernel"):
        paged_panes(naive)


# What is shown where nothing runs ---------------------------------------------------------------


def test_a_notebook_that_is_committed_has_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATIC, "1")
    bundle, _ = reference_microscope()._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/plain"}
    assert bundle["text/plain"].startswith("Instruction 81 of 6,156: warp 2 reads k_cache")


def test_in_jupyter_it_is_a_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATIC, raising=False)
    look = reference_microscope()
    bundle = look._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert json.loads(look.widget().data)["kernel"] == "paged_attention_kernel"


def test_without_anywidget_it_is_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATIC, raising=False)
    monkeypatch.setattr("pa_tutorial.viz.microscope.page._widget_class", no_widget)
    bundle, _ = reference_microscope()._repr_mimebundle_()
    assert "image/png" in bundle


def no_widget() -> type:
    raise ImportError("No module named 'anywidget'")


def pieces(trace: Trace) -> dict[str, Trace]:
    return {
        "k": trace.only(array="k_cache", warp=1),
        "shared write": trace.only(array="q_vecs", kind="write"),
        "local": trace.only(array="accs"),
        "shuffle": trace.only(kind="shuffle"),
        "barrier": trace.only(kind="barrier"),
    }


@pytest.mark.parametrize("name", ["k", "shared write", "local", "shuffle", "barrier"])
@pytest.mark.parametrize("lane", [None, 3])
def test_every_kind_of_instruction_has_a_picture(name: str, lane: int | None) -> None:
    run = run_v1(REFERENCE)
    figure = run_microscope(run, at=pieces(run.trace)[name], lane=lane).picture()
    assert len(figure.get_suptitle().split()) >= 6


def test_the_example_of_the_readme_runs_in_a_notebook_cell(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("## Look at a kernel")[1]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:1]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(example)])
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    (output,) = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data
    assert (tmp_path / "reverse.html").exists()


def test_a_tag_in_the_source_does_not_end_the_page(tmp_path: Path) -> None:
    @cuda.jit
    def kernel(out):  # </script><script>alert(1)</script>
        s = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        s[t] = 1
        out[t] = s[t]

    report = launch(kernel, 1, 4, np.zeros(4, np.float32), trace=0)
    microscope(report).save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2
