"""What a figure says, and whether its words can be read."""

from itertools import combinations

from matplotlib.figure import Figure


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def require_readable(figure: Figure) -> None:
    """Every word is inside the picture, and none lies over another."""
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in axes.texts if text.get_text()]
    boxes = {text: text.get_window_extent() for text in texts}
    for text, box in boxes.items():
        inside = figure.bbox.x0 - 1 <= box.x0 and box.x1 <= figure.bbox.x1 + 1
        inside &= figure.bbox.y0 - 1 <= box.y0 and box.y1 <= figure.bbox.y1 + 1
        assert inside, f"{text.get_text()!r} hangs over the edge"
    for (one, here), (other, there) in combinations(boxes.items(), 2):
        wide = min(here.x1, there.x1) - max(here.x0, there.x0)
        high = min(here.y1, there.y1) - max(here.y0, there.y0)
        meet = wide > 2 and high > 2
        assert not meet, f"{one.get_text()!r} lies over {other.get_text()!r}"
