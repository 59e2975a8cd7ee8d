"""Write pictures for slides into build/figures/: `python -m pa_tutorial.viz`.

Each is written as SVG and PNG. A picture of a notebook is the one committed there, named after the
notebook and its cell. The pictures that README, COURSE.md and the rooms' pages show are redrawn,
and so is the microscope's page. `make refresh` also writes these into figures/; to add one, put its
SVG there once.
"""

import argparse
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.figure import Figure

from pa_tutorial.printing import print_anything
from pa_tutorial.viz import cpu_measured, engine_figures, many_devices, moving, style, walk
from pa_tutorial.viz.paged_panes import reference_microscope
from simt.microscope import Microscope

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIGURES: dict[str, Callable[[], Figure]] = {
    "map": walk.draw_map,
    "bandwidth": cpu_measured.draw_bandwidth,
    "engine_step_ways": engine_figures.draw_step_ways,
    "distributed_heads": many_devices.draw_heads,
    "under_the_microscope": lambda: reference_microscope().picture(),
}
MOVING: dict[str, Callable[[], str]] = {"paging": moving.draw_moving_pages}
PAGES: dict[str, Callable[[], Microscope]] = {"microscope": reference_microscope}


def pictures(notebook: Path) -> Iterator[tuple[str, bytes, bytes]]:
    """The name, the SVG and the PNG of each cell that shows a picture."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if style.SVG in data:
                yield cell["id"], "".join(data[style.SVG]).encode(), b64decode(data[style.PNG])


def main() -> None:
    what = "Write every picture of the notebooks and of the pages, as SVG and PNG, for slides."
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.viz",
        description=what,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("build/figures"), help="where to write")
    out = parser.parse_args().out
    if not NOTEBOOKS.is_dir():
        parser.error("the notebooks are not here: they come with a clone or the source package")
    write_all(out)
    print(f"{len([*out.iterdir()])} files are in {out}.")


def write_all(out: Path) -> None:
    """Every picture and page."""
    out.mkdir(parents=True, exist_ok=True)
    for notebook in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        for name, svg, png in pictures(notebook):
            (out / f"{name}.svg").write_bytes(svg)
            (out / f"{name}.png").write_bytes(png)
    for name, draw in FIGURES.items():
        figure = draw()
        (out / f"{name}.svg").write_bytes(style.svg(figure))
        (out / f"{name}.png").write_bytes(style.png(figure))
    for name, draw in MOVING.items():
        (out / f"{name}.svg").write_text(draw(), encoding="utf-8")
    for name, make in PAGES.items():
        make().save_html(out / f"{name}.html")


if __name__ == "__main__":
    print_anything()
    main()
