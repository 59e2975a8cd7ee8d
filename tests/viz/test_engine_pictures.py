"""The figures of the engine: what is drawn is what happened."""

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.viz.engine_figures import WAITS, draw_batch, draw_timeline


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_timeline_tells_who_lost_its_blocks_from_who_still_waits() -> None:
    history = [{"a": 8, "b": WAITS}, {"a": 1, "b": 7}, {"a": 1, "b": WAITS}, {"b": WAITS}, {"b": 3}]
    figure = draw_timeline(history, "title")
    steps = [str(step) for step in range(5)]
    assert sorted(texts(figure)) == sorted(["8", "1", "7", "1", "3", "×", "a", "b", "step", *steps])
    (axes,) = figure.axes
    hatched = [
        patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()
    ]
    assert len(hatched) == 2


def test_batch_is_drawn_with_all_its_numbers() -> None:
    batch = {
        "input_ids": torch.tensor([65, 66, 67]),
        "positions": torch.tensor([30, 11, 12]),
        "slot_mapping": torch.tensor([47, 90, 91]),
        "query_lens": torch.tensor([1, 2]),
        "block_tables": torch.tensor([[14, 0], [23, 22]]),
        "seq_lens": torch.tensor([31, 13]),
    }
    drawn = texts(draw_batch(batch, ["a", "b"], "title"))
    for name in ("positions", "slot_mapping", "query_lens", "block_tables", "seq_lens"):
        assert {str(value) for value in batch[name].flatten().tolist()} <= set(drawn)
    assert {"A", "B", "C"} <= set(drawn)
