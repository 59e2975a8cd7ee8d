"""Other kernels under the microscope, in a real browser; where clicks lead; and its findings."""

from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

pytest.importorskip("matplotlib")

from simt import Report, compile_ptx, launch
from simt.microscope import microscope
from simt.ptx import PtxReport, run_ptx
from tests.simt.helpers import kernel, zeros
from tests.simt.microscope.reader import Reader

pytestmark = pytest.mark.rest("test_microscope_page.py")


@pytest.fixture
def read(read_page, tmp_path: Path):
    """read(report, …): the page of a microscope."""

    def read(report: Report | PtxReport, **options: object) -> Reader:
        microscope(report, **options).save_html(tmp_path / "page.html")
        return read_page(tmp_path / "page.html")

    return read


def test_shuffles_and_atomics_are_told_lane_by_lane(read) -> None:
    body = "if t < 32:\n    out[t] = cuda.shfl_down_sync(0xFFFFFFFF, t, 3)\n"
    made = kernel("out, count", body + "cuda.atomic.add(count, t % 2, 1)")
    report = launch(made, 1, 40, zeros(40), np.zeros(2, np.int32), trace=0)
    reader = read(report, at=report.trace.only(kind="shuffle"), lane=4)
    assert "lane 4 reads from lane 7" in reader.text(".sentence")
    assert reader.text(".chips").split()[:29] == [f"{lane}←{lane + 3}" for lane in range(29)]
    reader.find("count[1]")
    assert reader.text(".details .caption") == "count[1]: touched 20 times, every lane counted"
    assert "warp 1 lane 7 (thread 39)" in reader.text(".last")


def test_a_turn_stays_in_its_turn_of_the_loop_around(read) -> None:
    loops = "for i in range(3):\n    for j in range(i + 1):\n        a[i, j] = t"
    reader = read(launch(kernel("a", loops), 1, 1, zeros(3, 3), trace=0))
    order = [(i, j) for i in range(3) for j in range(i + 1)]
    for start, button, end in (
        ((0, 0), "i: next iteration", (1, 0)),
        ((2, 1), "j: next iteration", (2, 2)),
        ((1, 1), "i: previous iteration", (0, 0)),
    ):
        reader.go(order.index(start))
        reader.button(button).click()
        assert order[reader.at] == end, (start, button)


RACES = """
    s = cuda.shared.array(64, float32)
    s[t] = a[cuda.blockIdx.x, t]
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    if t > 4:  # lane 5 is the first to find it
        out[cuda.blockIdx.x, t] = s[68 - t]
"""


def test_a_race_leads_to_its_two_accesses(read) -> None:
    def race(block: int) -> Report:
        arrays = zeros(2, 64), zeros(2, 64)
        return launch(kernel("out, a", RACES), 2, 64, *arrays, collect=True, trace=block)

    assert read(race(0)).button("not in this thread block").is_disabled()
    report = race(1)
    (race_,) = report.findings
    reader = read(report)
    assert reader.text(".finding pre") == str(race_)
    for button, party in (("first", race_.other_thread), ("second", race_.thread)):
        reader.button(f"to the {button} access").click()
        assert reader.text(".chips .marked") == str(party % 32)
        verb = ("reads", "writes")[(button == "first") == (race_.site.line > race_.other_site.line)]
        assert reader.about[0].startswith(f"lane {party % 32} of warp {party // 32} {verb}")


WRONG = {  # a finding -> its line, the array of its pane, the end of the kernel
    "race": ("out[t] = s[63 - t]", "shared memory", "s[t] = a[t]\nout[t] = s[63 - t]"),
    "memory, not recorded": ("b[t + 64]", "b", "x = b[t]\nout[t] = x + b[t + 64]"),
    "sync": ("cuda.syncthreads()", "a", "s[t] = a[t]\nif t < 40:\n    cuda.syncthreads()"),
}


@pytest.mark.parametrize("width", [360, 1366])
@pytest.mark.parametrize("name", WRONG)
def test_it_opens_at_a_finding_with_its_array_in_view(read, name: str, width: int) -> None:
    line, array, body = WRONG[name]
    made = kernel("a, b, out", f"s = cuda.shared.array(64, float32)\ns[t] = t\n{body}")
    arrays = (zeros(64) for _ in range(3))
    reader = read(launch(made, 1, 64, *arrays, collect=True, trace=0))
    reader.page.set_viewport_size({"width": width, "height": 720})
    assert line in reader.text(".line.now.wrong")
    assert ("Nothing is recorded" in reader.text(".notice")) == ("not recorded" in name)
    first = reader.page.locator(".pane").first
    assert first.inner_text().removeprefix("● ").startswith(array)
    box = first.bounding_box()
    assert box["y"] + box["height"] <= 720


@cuda.jit
def doubled_in_reverse(out: np.ndarray, a: np.ndarray) -> None:
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = 2 * s[31 - t]


@pytest.mark.needs("numba-cuda")
def test_the_ptx_of_a_line_is_beside_it(read) -> None:
    """For the line where the page opens, for one that is picked, and in the kernel as compiled."""
    launched = doubled_in_reverse, 1, 32, np.zeros(32, np.float32), np.ones(32, np.float32)
    report = launch(*launched, trace=0)
    reader = read(report, ptx=compile_ptx(launched[0], *launched[3:], lineinfo=True))
    assert "ld.global.f32" in reader.text(".ptx pre")
    reader.page.locator(".line.compiled", has_text="cuda.syncthreads()").click()
    assert reader.text(".ptx pre") == "bar.sync 0"
    reader.click_line("out[t] = 2 * s[31 - t]")
    assert "PTX of line" in reader.text(".ptx summary")
    assert "ld.shared.f32" in reader.text(".ptx pre")
    reader = read(run_ptx(*launched))
    assert "ld.global.f32" in reader.text(".ptx .now")
    reader.click_line("out[t] = 2 * s[31 - t]", times=2)
    assert "st.global.f32" in reader.text(".ptx .now")
    assert "writes out" in reader.text(".sentence")
