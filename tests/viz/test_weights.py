"""A reader's weights are drawn beside the right ones, whatever a wrong function returned."""

import math

import pytest
import torch
from torch import Tensor

from pa_tutorial.viz.kv_cache import draw_weights
from tests.simt.microscope.pictures import require_readable, texts_of

SCORES = torch.arange(24.0).view(4, 6) % 5


def masked(diagonal: int) -> Tensor:
    """Four queries, the last of six tokens; diagonal 3 is the causal mask."""
    is_hidden = torch.ones(4, 6).triu(diagonal) > 0
    return torch.softmax(SCORES.masked_fill(is_hidden, -math.inf), dim=-1)


RIGHT = masked(3)


def drawn(yours: object, title: str = "") -> tuple[str, list[str]]:
    """The title, and the words of the panel of the reader's weights."""
    figure = draw_weights({"yours": yours, "right": RIGHT}, title)
    require_readable(figure)
    texts = texts_of(figure)
    return figure.get_suptitle(), texts[: texts.index("right")]


def changed(number: float, row: int = 0, column: int = 0) -> Tensor:
    weights = RIGHT.clone()
    weights[row, column] = number
    return weights


def swapped() -> Tensor:
    weights = RIGHT.clone()
    weights[0, :2] = RIGHT[0, [1, 0]]
    return weights


@pytest.mark.parametrize(
    ("yours", "title"),
    [
        (RIGHT, "Your weights are right"),
        (masked(4), "3 weights that must be 0 are not (red)"),
        (changed(math.nan, 1, 2), "1 weight is NaN"),
        (RIGHT / 2, "The weights of query 0 add up to 0.50, not 1.00"),  # not all that are wrong
        (swapped(), "2 weights are wrong (outlined)"),
    ],
)
def test_the_title_says_what_is_wrong_first(yours: Tensor, title: str) -> None:
    assert drawn(yours)[0] == title


HOSTILE = {
    "a number": 0.5,
    "lists of other lengths": [[0.5], [0.5, 0.5]],
    "words": "weights",
    "rows of nothing": torch.zeros(4, 0),
    "a head too many": RIGHT.expand(2, 4, 6),
    "many rows": RIGHT.repeat(50, 3),
    "float16 with a gradient": RIGHT.half().requires_grad_(),
    "complex numbers": RIGHT + 1j,
    "meta": RIGHT.to("meta"),
    "sparse": RIGHT.to_sparse(),
    "huge": -RIGHT * 1e30,
    "NaN everywhere": RIGHT * math.nan,
}


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_wrong_function_returned_is_drawn(kind: str) -> None:
    drawn(HOSTILE[kind], title="attention: `$x_{` isn't right; " * 6)


def test_alone_the_right_weights_are_the_goal() -> None:
    for rows, columns in (("query", "token"), ("sequence", "slot")):
        figure = draw_weights({"right": RIGHT}, rows=rows, columns=columns)
        require_readable(figure)
        assert figure.get_suptitle() == "The goal: 6 of 24 weights are 0"
        assert f"{rows} 3" in texts_of(figure)
