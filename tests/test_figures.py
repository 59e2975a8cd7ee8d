"""Every committed figure is what the code draws: SVG by bytes, PNG by pixels."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pa_tutorial.viz import style
from pa_tutorial.viz.__main__ import FIGURES

FOLDER = Path(__file__).parent.parent / "figures"


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


@pytest.mark.parametrize("name", FIGURES)
def test_committed_figure_is_what_the_code_draws(name: str) -> None:
    figure = FIGURES[name]()
    assert style.svg(figure) == (FOLDER / f"{name}.svg").read_bytes(), "run `make figures`"
    committed = (FOLDER / f"{name}.png").read_bytes()
    assert np.array_equal(pixels(style.png(figure)), pixels(committed)), "run `make figures`"


def test_no_figure_without_code() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_figure_states_its_finding_at_notebook_width(name: str) -> None:
    figure = FIGURES[name]()
    assert len(figure.get_suptitle().split()) >= 6, "the title is a sentence"
    assert figure.get_figwidth() == style.WIDTH


def test_palette_can_be_told_apart_in_grey() -> None:
    """Neighbours in lightness of the colours that meet in one figure are not equal."""
    grey = [
        sum(w * int(color[i : i + 2], 16) for w, i in ((0.299, 1), (0.587, 3), (0.114, 5)))
        for color in (style.Q, style.K, style.LOGITS)
    ]
    gaps = np.diff(sorted(grey))
    assert gaps.min() > 5
