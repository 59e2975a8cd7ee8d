"""The microscope's data: nothing of the trace is lost, and panes name what is there."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32
from simt_kernels.example import EXAMPLES

from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Report, Trace, global_traffic, launch, shared_traffic
from pa_tutorial.simt.trace import NO_LANE
from pa_tutorial.simt.traffic import costs
from pa_tutorial.viz.kernel_runs import REFERENCE, run_v1
from pa_tutorial.viz.microscope import microscope
from pa_tutorial.viz.microscope.data import TYPES, aliases, packed
from pa_tutorial.viz.microscope.page import STATIC
from pa_tutorial.viz.microscope.paged_panes import reference_microscope, run_microscope

ROOT = Path(__file__).parents[2]
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


def test_a_name_of_a_name() -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(8, float32)
        first = s
        second = first
        t = cuda.threadIdx.x
        second[t] = t
        out[t] = first[t]

    assert aliases(launch(kernel, 1, 8, np.zeros(8), trace=0).trace) == {"s": ["first", "second"]}


def test_a_thread_block_has_only_its_own_arrays() -> None:
    @cuda.jit
    def kernel(out, a, b):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            out[t] = a[t]
        else:
            b[t] = 1

    report = launch(kernel, 2, 8, np.zeros(8), np.zeros(8), np.zeros(8), trace="all")
    second = microscope(report, block=1)
    assert [array.name for array in second.trace.arrays] == ["b"]
    assert set(second.trace.records.array.tolist()) == {0}
    assert [pane.array for pane in second.panes] == ["b"]


def test_a_finding_is_at_its_place_in_this_thread_block() -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 1:
            s[t] = t
            out[t] = s[63 - t]
        else:
            out[t] = 0

    report = launch(kernel, 2, 64, np.zeros(64), trace="all", collect=True, checks=("init", "race"))
    of_block = [f for f in report.findings if f.array == "s"]
    (race,) = of_block
    place = report.findings.index(race)
    found = microscope(report, block=1).data["findings"][place]
    start = report.trace.only(block=1).records.instruction[0]
    assert (found["first"], found["second"]) == (
        race.other_instruction - start,
        race.instruction - start,
    )
    assert (found["first_lane"], found["second_lane"]) == (31, 0)
    elsewhere = microscope(report, block=0).data["findings"][place]
    assert (elsewhere["first"], elsewhere["second"]) == (None, None)


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
