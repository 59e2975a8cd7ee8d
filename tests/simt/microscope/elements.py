"""Which elements the panes of the microscope show."""

from collections.abc import Iterator
from itertools import product

from simt.microscope import Pane


def elements_of(pane: Pane) -> Iterator[tuple[int, dict[str, int]]]:
    """Every element of every tile, and its labels: by hand."""
    axes = *pane.rows, *pane.columns
    for tile, *at in product(pane.tiles, *(range(axis.size) for axis in axes)):
        values = {**tile.values, **{a.name: n for a, n in zip(axes, at, strict=True)}}
        terms = {name: terms.items() for name, terms in pane.labels.items()}
        labels = {name: sum(values[k] * factor for k, factor in of) for name, of in terms.items()}
        yield tile.start + sum(a.stride * n for a, n in zip(axes, at, strict=True)), labels
