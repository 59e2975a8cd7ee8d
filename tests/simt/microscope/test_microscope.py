"""The microscope's data: nothing of the trace is lost, and panes name what is there."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from numba import cuda

pytest.importorskip("matplotlib")

from simt import Report, launch
from simt.microscope import Axis, Pane, microscope, page
from simt.microscope.data import TYPES, aliases, packed
from simt.microscope.page import DATA, STATIC
from simt.ptx import run_ptx
from tests.simt.helpers import kernel, run, zeros
from tests.simt.kernels.example import EXAMPLES
from tests.simt.microscope.elements import elements_of
from tests.simt.microscope.pictures import require_readable, texts_of
from tests.simt.ptx.small_kernels import run as run_text
from tests.simt.ptx.small_kernels import text_of

DTYPES = {name: kind for kind, name in TYPES.items()}


def unpacked(column: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column["data"]), "<" + DTYPES[column["type"]])


def records_of(data: dict) -> list[tuple]:
    """The records that a page can make of its data."""
    columns = {key: unpacked(column) for key, column in data["columns"].items()}
    patterns, found = columns["patterns"].reshape(-1, 32), []
    for i, lanes in enumerate(columns["lanes"].tolist()):
        array = data["arrays"][columns["array"][i] - 1]["name"] if columns["array"][i] else ""
        fields = [int(columns[f][i]) for f in ("number", "warp", "kind", "space", "num_bytes")]
        place = data["places"][columns["place"][i]]["text"]
        way = tuple(tuple(step) for step in data["ways"][columns["way"][i]])
        for lane in (lane for lane in range(32) if lanes >> lane & 1):
            value = int(columns["base"][i] + patterns[columns["pattern"][i], lane])
            found.append((*fields, lane, value, array, place, way))
    return found


@pytest.mark.parametrize("name", [
    "each_warp_function", "atomic_max_and_min", "nested_loops_of_other_lengths",
    "a_record_is_a_reference", "slices_are_views_cut_as_in_python", "transpose_with_padding",
    "records_are_copied_through_shared_and_local_memory", "grid_of_three_dimensions",
])  # fmt: skip
def test_the_page_knows_every_record_of_the_trace(name: str) -> None:
    report = run(EXAMPLES[name], checks=(), trace=0)
    trace = report.trace
    fields = ("instruction", "warp", "kind", "space", "num_bytes", "lane")
    assert records_of(microscope(report).data) == [
        (
            *(int(r[f]) for f in fields),
            int(r.address if r.space else max(r.source_lane, 0)),
            trace.arrays[r.array].name if r.array >= 0 else "",
            trace.sites[r.place].text,
            trace.ways[r.way],
        )
        for r in trace.records
    ]


@pytest.mark.parametrize(
    "values", [[0, 255], [0, 256], [0, 2**16], [-1, 3], [2**31], [2**32], [2**40, -5], []]
)
def test_numbers_survive_packing(values: list[int]) -> None:
    assert unpacked(packed(np.array(values, np.int64))).tolist() == values


def test_names_of_names_are_found_and_a_tag_does_not_end_the_page(tmp_path: Path) -> None:
    body = """
        s = cuda.shared.array(8, float32)  # </script><script>alert(1)</script>
        first = s
        second = first
        second[t] = t
    """
    report = launch(kernel("out", body), 1, 8, zeros(8), trace=0)
    assert aliases(report.trace) == {"s": ["first", "second"]}
    microscope(report).save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("</script>") == 2


def test_a_thread_block_has_its_own_arrays() -> None:
    body = "if cuda.blockIdx.x == 1:\n    out[t] = t\nelse:\n    b[t] = 1"
    report = launch(kernel("out, b", body), 2, 64, zeros(64), zeros(64), trace="all")
    for block, name in ((None, "b"), (0, "b"), (1, "out")):
        look = microscope(report, block=block)
        assert [a.name for a in look.trace.arrays] == [p.array for p in look.panes] == [name]
        assert {*look.trace.records.array.tolist()} == {0}


def far_apart(num_threads: int, trace: int) -> Report:
    made = kernel("out, a, middle", "out[t, 1] = a[t] + a[900 + t] + middle[160 + t]")
    arrays = zeros(96, 4), zeros(2000), zeros(2000)
    return launch(made, 3, num_threads, *arrays, trace=trace, checks=())


@pytest.mark.parametrize("way", ["committed", "jupyter", "without anywidget"])
def test_a_notebook_shows_a_widget_or_a_picture(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATIC, "1" if way == "committed" else "")
    if way == "jupyter":
        pytest.importorskip("anywidget")
    if way == "without anywidget":
        monkeypatch.setattr(page, "_widget_class", Mock(side_effect=ImportError))
    look = microscope(far_apart(96, 0), at=4)
    bundle = look._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    if way == "jupyter":
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert json.loads(look.widget().data)["kernel"] == "kernel"
    else:
        assert {*bundle} == {"image/svg+xml", "image/png", DATA, "text/plain"}
        assert bundle["text/plain"].startswith("Instruction 5 of 12: warp 1 reads a")


def test_memory_that_nobody_touches_is_left_out() -> None:
    panes = {pane.array: pane for pane in microscope(far_apart(96, 0)).panes}
    covered = {element for element, _ in elements_of(panes["a"])}
    assert {*range(96), *range(900, 996)} <= covered
    assert (len(panes["a"].tiles), len(covered) <= 2 * 16 * 32) == (2, True)
    assert [(tile.start, tile.title) for tile in panes["middle"].tiles] == [(160, "")]
    assert (panes["middle"].rows[0].size, panes["out"].columns[0].size) == (3, 4)


ROW = (Axis("row", 1, 1),)
BAD = {
    "block is 2": lambda r: microscope(r, block=2),
    "at is 99": lambda r: microscope(r, at=99),
    "lane is 32": lambda r: microscope(r, lane=32),
    "panes holds 'a'": lambda r: microscope(r, panes=["a"]),
    "panes: the array is 'b'": lambda r: microscope(r, panes=[Pane("b", "", ROW, ())]),
    "report is without a trace": lambda r: microscope(replace(r, trace=None)),
    "touched nothing": lambda r: microscope(replace(r, trace=r.trace.only(kind="atomic"))),
    "ptx is": lambda r: microscope(r, ptx=text_of("")),
    "label 'b' of a is 'c'": lambda r: Pane("a", "", ROW, (), labels={"b": {"c": 1}}),
    "rows, columns is": lambda r: Pane("a", "", (), ()),
    "tiles is empty": lambda r: Pane("a", "", ROW, (), tiles=()),
    "of different names": lambda r: Pane("a", "", ROW, ROW),
    "color is 'notacolor'": lambda r: Pane("a", "", ROW, (), color="notacolor"),
    "size of the axis 'row' is 0": lambda r: Axis("row", 0, 1),
}


@pytest.mark.parametrize(("message", "make"), BAD.items(), ids=BAD)
def test_what_cannot_be_shown_is_refused(message: str, make: Callable) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make(far_apart(8, 1))


@cuda.jit
def doubled(out: np.ndarray, a: np.ndarray) -> None:
    out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]


@pytest.mark.needs("numba-cuda")
def test_the_picture_of_a_compiled_kernel_shows_its_ptx() -> None:
    report = run_ptx(doubled, 1, 32, np.zeros(32, np.float32), np.ones(32, np.float32))
    picture = microscope(report, at=report.trace.only(array="a")).picture()
    assert [text for text in texts_of(picture) if text.startswith("ld.global.f32 %f")]
    require_readable(picture)


def test_a_text_is_its_own_source_and_opens_in_the_microscope() -> None:
    report = run_text("ld.global.u32 %r3, [%rd1]; st.shared.u32 [s], %r3;", np.zeros(1, np.uint32))
    (source,) = report.trace.sources
    assert "ld.global.u32 %r3, [%rd1]; st.shared.u32 [s], %r3" in source.lines.values()
    look = microscope(report)
    assert [array["name"] for array in look.data["arrays"]] == ["argument 0", "s"]
    assert look.data["shared"]["end"] == 256
    assert {place["source"] for place in look.data["places"]} == {0}
    assert look.data["compiled"]
    require_readable(look.picture())
