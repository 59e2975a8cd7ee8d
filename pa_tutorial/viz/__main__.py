"""Draw every figure into figures/, as SVG and PNG: `python -m pa_tutorial.viz`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from pa_tutorial.viz import kv_cache, style, walk

FIGURES: dict[str, Callable[[], Figure]] = {
    "map": walk.draw_map,
    "prefill_and_decode": kv_cache.draw_prefill_and_decode,
    "keys_moved": kv_cache.draw_keys_moved,
    "work_per_token": kv_cache.draw_work_of_tiny_lm,
    "intensity": kv_cache.draw_intensity,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, draw) in enumerate(FIGURES.items(), start=1):
        print(f"{number} of {len(FIGURES)}  {out / name}", flush=True)
        figure = draw()
        (out / f"{name}.svg").write_bytes(style.svg(figure))
        (out / f"{name}.png").write_bytes(style.png(figure))


if __name__ == "__main__":
    main()
