"""Check and measure on this machine's GPU: `make gpu`, or `python3 -m pa_tutorial.bench.gpu`.

Runs from the working tree with whatever python3 has; installs nothing; names what is missing.
Each section runs in a process of its own and has a number of seconds: what goes wrong in one is a
line of the page and of the JSON file, the others go on, and the exit status is 1. A section that
has no time left says what it left out.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

# What is used there.
PACKAGES = ("torch", "numba", "numba_cuda", "triton")
NEEDED = ("numba", "numba_cuda")  # by every section
TOTAL_SECONDS = 525  # of all sections: less than 9 minutes with what comes before and after
GRACE_SECONDS = 15  # that a section may need to start and to end; then its process is ended

MOST_FAILURES = 8  # that the page names


@dataclass(frozen=True)
class Section:
    """One part of the page.

    module   of this folder: compare(seconds) prints a few lines and returns what goes into the
             JSON file; what it names under "wrong" is a failure
    seconds  that it may take
    lines    of what it prints that are shown
    """

    title: str
    module: str
    seconds: float
    lines: int


SECTIONS = {
    "streams": Section("Streams, graphs and shared memory", "gpu_streams", 25, 4),
    "ladder": Section("Every case of the ladder", "gpu_ladder", 60, 7),
    "cache": Section("New tokens and copied blocks", "gpu_cache", 15, 2),
    "recorded": Section("Beside outputs of the simulator", "gpu_recorded", 35, 4),
    "times": Section("Bandwidth, in % of a copy's", "gpu_times", 110, 18),
    "choice": Section("v1 or v2", "gpu_choice", 35, 4),
    "grid": Section("vLLM's grid", "gpu_grid", 115, 7),
    "sanitizer": Section("compute-sanitizer", "gpu_sanitizer", 60, 2),
    "simulated_kernels": Section("The simulator's small kernels", "gpu_kernels", 40, 3),
    "traffic": Section("Counts of memory beside Nsight Compute's", "gpu_traffic", 35, 4),
}


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if find_spec(name) is None]


def run_section(module_and_seconds: tuple[str, float]) -> dict[str, object]:
    """In a process of its own: a section's results, and under "printed" its lines.

    module_and_seconds  the module of the section, and its seconds
    """
    module, seconds = module_and_seconds
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            results = import_module(f"pa_tutorial.bench.{module}").compare(seconds)
    except Exception as error:  # whatever goes wrong there is a line of the page
        from pa_tutorial.bench.process_pool import in_a_line

        results = {"wrong": [in_a_line(error)], "traceback": traceback.format_exc()}
        print(f"failed: {in_a_line(error)}", file=printed)
    return {"printed": printed.getvalue(), **results}


def results_of(section: Section, seconds: float) -> dict[str, object]:
    """What run_section gives; what there is instead if packages or time are missing, or if the
    process does not come back."""
    from pa_tutorial.bench.process_pool import run_in_pool

    missing = [name for name in NEEDED if name in missing_packages()]
    if missing:
        why = f"missing on this machine: {', '.join(missing)}"
        return {"not_run": why, "printed": f"not run: {why}\n"}
    if seconds <= 0:
        return {"not_run": "no time was left", "printed": "not run: no time was left\n"}
    work = [(section.module, seconds)]
    done = run_in_pool(run_section, work, workers=1, seconds=seconds + GRACE_SECONDS)
    if done.results:
        return done.results[0]
    why = done.failed.get(0, f"it was not done after {seconds + GRACE_SECONDS:.0f} seconds")
    return {"wrong": [why], "printed": f"failed: {why}\n"}


def show(section: Section, results: dict[str, object]) -> None:
    """A title, and as many lines as the section may have."""
    lines = str(results.pop("printed")).splitlines()
    print(f"{section.title} ({results['seconds']:.0f} s)")
    for line in lines[: section.lines]:
        print(f"  {line[:200]}")
    if len(lines) > section.lines:
        print(f"  … and {len(lines) - section.lines} more lines; all of it is in the JSON file")
    sys.stdout.flush()


def measure(names: Sequence[str], machine: str, folder: Path) -> int:
    """Run these sections, print the page, write the JSON file after each; the exit status."""
    from pa_tutorial.bench.timing import write_results

    start = time.monotonic()
    results: dict[str, object] = {}
    wrong = []
    for name in names:
        section, began = SECTIONS[name], time.monotonic()
        left = TOTAL_SECONDS - GRACE_SECONDS - (began - start)
        of_section = results_of(section, min(section.seconds, left))
        of_section["seconds"] = round(time.monotonic() - began, 1)
        show(section, of_section)
        results[name] = of_section
        wrong += [f"{name}: {what}" for what in of_section.get("wrong", ())]
        results["wrong"] = wrong
        results["total_seconds"] = round(time.monotonic() - start, 1)
        path = write_results(results, machine, folder)
    print(f"{len(wrong)} failures, {results['total_seconds']:.0f} seconds; wrote {path}")
    for line in wrong[:MOST_FAILURES]:
        print(f"  FAILED {line[:200]}")
    if len(wrong) > MOST_FAILURES:
        print(f"  … and {len(wrong) - MOST_FAILURES} more, in the JSON file")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    arguments = parser.parse_args()
    for name in missing_packages():
        print(f"{name} is missing on this machine: what needs it is skipped.")
    if "torch" in missing_packages():
        print("Nothing was measured.")
        return 0
    import torch

    from pa_tutorial.bench.timing import RESULTS

    if not torch.cuda.is_available():
        print("No GPU here: nothing was measured. The walk needs none.")
        return 0
    # Small grids are meant here: Numba, in the processes of the sections, need not warn of them.
    os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    return measure(arguments.only or list(SECTIONS), name, arguments.out or RESULTS)


if __name__ == "__main__":
    sys.exit(main())
