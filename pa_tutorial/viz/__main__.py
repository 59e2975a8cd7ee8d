"""Draw every figure into build/figures/, as SVG and PNG, and the page of the microscope:
`python -m pa_tutorial.viz`. What stands in figures/, which README, COURSE.md and the pages of the
rooms show, `make refresh` writes anew. For one more, put its SVG there once."""

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from pa_tutorial.viz import (
    block_stories,
    cpu_figures,
    cpu_measured,
    engine_figures,
    first_kernel,
    gpu_figures,
    keys,
    kv_cache,
    latent,
    many_devices,
    multiprocessors,
    online,
    paged_figures,
    partitions,
    poster,
    qk,
    query,
    rows,
    style,
    walk,
    waste,
    wide,
)
from pa_tutorial.viz.microscope import Microscope
from pa_tutorial.viz.microscope.paged_panes import reference_microscope

FIGURES: dict[str, Callable[[], Figure]] = {
    "map": walk.draw_map,
    "pages": waste.draw_example_pages,
    "prefill_and_decode": kv_cache.draw_prefill_and_decode,
    "work_per_token": kv_cache.draw_work_of_tiny_lm,
    "intensity": kv_cache.draw_intensity,
    "memory_waste": waste.draw_shares_by_policy,
    "memory_map": waste.draw_small_memory_map,
    "worked_example": block_stories.draw_worked_example,
    "grow_fork_finish": block_stories.draw_grow_fork_finish,
    "shared_prompt": block_stories.draw_shared_prompt,
    "neighbours": block_stories.draw_neighbours_in_layouts,
    "slot_write": block_stories.draw_small_slot_write,
    "online_softmax": online.draw_worked_trail,
    "merge": online.draw_worked_merge,
    "stream": paged_figures.draw_stream_of_two,
    "gpu": gpu_figures.draw_gpu,
    "grid": first_kernel.draw_grid_of_batch,
    "addresses": first_kernel.draw_worked_addresses,
    "poster": poster.draw_poster,
    "poster_partitions": poster.draw_poster_of_v2,
    "qk": qk.draw_worked_qk,
    "query_banks": query.draw_reference_query_banks,
    "blocks_of_warps": keys.draw_reference_blocks_of_warps,
    "key_address": keys.draw_worked_key_address,
    "value_rows": rows.draw_reference_value_rows,
    "whole_kernel": rows.draw_worked_kernel,
    "first_reads": wide.draw_reference_first_reads,
    "idle_multiprocessors": multiprocessors.draw_idle_of_two_batches,
    "split": partitions.draw_worked_split,
    "mixed_batch": partitions.draw_mixed_batch,
    "cpu_order": cpu_figures.draw_order_of_reference,
    "cpu_steps": cpu_figures.draw_steps,
    "bandwidth": cpu_measured.draw_bandwidth,
    "engine_step_ways": engine_figures.draw_step_ways,
    "distributed_heads": many_devices.draw_heads,
    "distributed_blocks": many_devices.draw_blocks,
    "latent": latent.draw_two_ways,
    "under_the_microscope": lambda: reference_microscope().picture(),
}
PAGES: dict[str, Callable[[], Microscope]] = {"microscope": reference_microscope}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/figures"), help="folder for them")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, draw) in enumerate(FIGURES.items(), start=1):
        print(f"{number} of {len(FIGURES)}  {out / name}", flush=True)
        figure = draw()
        (out / f"{name}.svg").write_bytes(style.svg(figure))
        (out / f"{name}.png").write_bytes(style.png(figure))
    for name, make in PAGES.items():
        print(f"page {out / name}.html", flush=True)
        make().save_html(out / f"{name}.html")


if __name__ == "__main__":
    main()
