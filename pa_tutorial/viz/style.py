"""The shared figure style: fixed colours, one font size, notebook width, the same bytes each time.

In pictures of tensors, a colour has one meaning in every figure; plots of measurements use INK and
QUIET. The colours are from Okabe and Ito. People with a colour vision deficiency can tell them
apart, and their lightness differs, so grey prints work.
"""

import io
import os
import re
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Q = "#0072B2"
K = "#E69F00"
V = "#009E73"
LOGITS = "#CC79A7"
OUT = "#56B4E9"
NAN = "#D55E00"
INK = "#222222"
QUIET = "#767676"
PAPER = "#FFFFFF"
EMPTY = "#F2F2F2"

# A sequence keeps its hue in all figures. The hues are alternately darker and lighter than the
# tensors' colours, so no sequence looks like a tensor, even in grey or to a colour-blind reader.
SEQUENCES = (
    *("#332288", "#CFE08A", "#4D5A2A", "#E3C9B0"),
    *("#661100", "#882255", "#A89048", "#B448CC"),
)
WRONG = NAN  # a red outline: what a reader's function gets wrong
UNUSED_HATCH = "////"  # means unused, in every figure, and nothing else

SVG, PNG = "image/svg+xml", "image/png"
SVG_ONLY = "PA_TUTORIAL_SVG_ONLY"  # if set, notebooks get no PNG, which takes as long to draw
# Coordinates get two digits: 1/7,200 inch is precise enough and saves a third of the space.
PLACE = re.compile(rb"\b([1-9]\d*\.\d\d)\d+")  # not the small factors that scale letters
WIDTH = 7.2  # inches: the width of a notebook's text
DPI = 120
TITLE = {"x": 0.01, "ha": "left", "weight": "bold", "size": 9}

RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs everywhere
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.labelsize"), 9),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 9),
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "hatch.color"), QUIET),
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor"), PAPER),
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "pa_tutorial",
    "svg.fonttype": "path",
}


# Decorator of every function that draws a figure, so that the style applies to all it adds.
styled = rc_context(RC)


def new_figure(
    title: str, height: float, ncols: int = 1, nrows: int = 1, **options: object
) -> tuple:
    """A figure of notebook width with a sentence as its title; returns (figure, axes).

    options go to Figure.subplots (width_ratios, sharey, …).
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title, **TITLE)
    return figure, figure.subplots(nrows, ncols, **options)


def _save(
    figure: Figure, canvas: type[FigureCanvasBase], canvas_dpi: int, **options: object
) -> bytes:
    """Lay out, then draw: `savefig` alone would draw everything twice, once for the layout.

    canvas, canvas_dpi  what `savefig` would use for the layout
    """
    buffer = io.BytesIO()
    dpi, engine = figure.dpi, figure.get_layout_engine()
    with rc_context(RC):
        engine.execute(figure)  # the layout settles only the second time
        canvas(figure)
        figure.dpi = canvas_dpi
        engine.execute(figure)
        FigureCanvasBase(figure)
        figure.dpi = dpi
        figure.set_layout_engine(None)
        figure.savefig(buffer, **options)
    figure.set_layout_engine(engine)
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    return _save(figure, FigureCanvasAgg, DPI, format="png", dpi=DPI, metadata={"Software": None})


def svg(figure: Figure) -> bytes:
    """Without date, program version or random ids: equal figures are equal bytes."""
    options = {"format": "svg", "metadata": {"Date": None, "Creator": None}}
    return PLACE.sub(rb"\1", _save(figure, FigureCanvasSVG, 72, **options))


@dataclass(frozen=True)
class Shown:
    """A figure as a notebook shows it; its title is the alternative text.

    The SVG is sharp at any size. In a notebook that it doesn't trust, for example after a clone,
    JupyterLab shows the PNG instead.
    """

    figure: Figure

    def _repr_mimebundle_(self, **options: object) -> tuple[dict, dict]:
        alt = self.figure.get_suptitle().replace("\n", " ")
        one_line = " ".join(svg(self.figure).decode().split())  # else a picture is 5,000 lines
        bundle = {SVG: one_line, "text/plain": alt}
        if os.environ.get(SVG_ONLY):
            return bundle, {}
        bundle[PNG] = png(self.figure)
        return bundle, {PNG: {"width": round(WIDTH * 100), "alt": alt}}


def show(figure: Figure) -> Shown:
    return Shown(figure)


def lighter(color: str, amount: float = 0.6) -> str:
    """The colour mixed with white, for things that were there before."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * amount):02X}" for part in parts)


def ink_on(color: str) -> str:
    """Black or white, whichever is readable on the colour."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.45 else PAPER
