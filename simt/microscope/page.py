"""Show the microscope: in JupyterLab, as a separate page, or as a picture."""

import json
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from simt import Report, Trace
from simt.microscope import style
from simt.microscope.data import as_data, findings
from simt.microscope.panes import Pane, pane_as_data, shared_as_data
from simt.microscope.still import draw_step
from simt.ptx import PtxReport
from simt.ptx.parsing import Kernel

STATIC = "SIMT_STATIC"  # if set, show pictures, as in committed notebooks
DATA = "application/vnd.simt.microscope"  # beside the picture; docs/ makes a page of it
SCRIPTS = (
    "recording.js",
    "grid.js",
    "paint.js",
    "views.js",
    "microscope.js",
    "moves.js",
    "showing.js",
    "words.js",
    "details.js",
    "mount.js",
)
FOLDER = Path(__file__).parent

# The page loads nothing from anywhere.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 0; }}
{css}</style>
</head>
<body>
<script type="application/json" id="data">{data}</script>
<script type="module">
{script}
const text = document.getElementById("data").textContent;
globalThis.microscope = mount(document.body, JSON.parse(text));
microscope.root.focus({{ preventScroll: true }});
</script>
</body>
</html>
"""


def script() -> str:
    """The JavaScript of the microscope, one module."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)


def css() -> str:
    return (FOLDER / "microscope.css").read_text(encoding="utf-8")


def page(title: str, data: str) -> str:
    """A page of one microscope. data: Microscope.as_json"""
    data = data.replace("<", "\\u003c")  # no tag can end within it
    return PAGE.format(policy=POLICY, title=title, css=css(), data=data, script=script())


@dataclass(frozen=True)
class Microscope:
    """One thread block under the microscope. Show it in a notebook, or save it as a page.

    report  the report, with the findings
    trace   the trace of the thread block
    panes   one per global array
    step    the warp instruction at which it opens, counted from 0 in this trace
    lane    the lane that is followed then; None: all
    compiled  the kernel whose PTX is shown; None: no PTX is shown

    In JupyterLab it is interactive. Without anywidget, or if SIMT_STATIC is set as for
    committed notebooks, it is a picture of the instruction at which it opens.
    """

    report: Report | PtxReport
    trace: Trace
    panes: tuple[Pane, ...]
    step: int
    lane: int | None
    compiled: Kernel | None = None

    @cached_property
    def data(self) -> dict[str, object]:
        """The page's data."""
        numbers = np.unique(self.trace.records.instruction)
        now = self.trace.only(instruction=int(numbers[self.step]))
        warp = None if self.lane is None else int(now.records.warp[0])
        opens = {"step": self.step, "warp": warp, "lane": self.lane}
        data = as_data(self.report, self.trace, self.panes, self.compiled)
        return data | {"open": opens}

    @cached_property
    def as_json(self) -> str:
        return json.dumps(self.data, separators=(",", ":"))

    def save_html(self, path: str | Path) -> None:
        """Save one file that any browser shows without a network."""
        text = page(f"{self.trace.kernel} under the microscope", self.as_json)
        Path(path).write_text(text, encoding="utf-8", newline="\n")

    def picture(self) -> Figure:
        """A picture of the instruction at which it opens, as in committed notebooks."""
        shared = shared_as_data(self.trace)
        shapes = [pane_as_data(pane, self.trace) for pane in self.panes]
        shapes += [shared] if shared else []
        found = findings(self.report, self.trace)
        return draw_step(self.trace, self.step, shapes, self.lane, found, self.compiled)

    def widget(self) -> object:
        """An ipywidget. Raises ImportError without anywidget (`pip install anywidget`)."""
        return _widget_class()(data=self.as_json)

    def _repr_mimebundle_(self, **options: object) -> object:
        if not os.environ.get(STATIC):
            try:
                return self.widget()._repr_mimebundle_(**options)
            except ImportError:
                pass
        bundle, metadata = style.Shown(self.picture())._repr_mimebundle_()
        return bundle | {DATA: self.as_json}, metadata


@cache
def _widget_class() -> type:
    import anywidget
    import traitlets

    class MicroscopeWidget(anywidget.AnyWidget):
        _esm = script()
        _css = css()
        data = traitlets.Unicode().tag(sync=True)

    return MicroscopeWidget
