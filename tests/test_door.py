"""A door opens one room: what `check` loads, and what it takes."""

import json
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "pa_tutorial"
PROGRAM = """
import json, sys, time
from pa_tutorial.checks import check
imported = [*sys.modules]
start = time.process_time()
check("kv_cache")
print(json.dumps([imported, [*sys.modules], time.process_time() - start]))
"""
FAR_ROOMS = ("simt", "kernels", "engine", "exercises", "viz", "bench")
FAR = {"numba", "triton", "transformers", "matplotlib", *(f"pa_tutorial.{r}" for r in FAR_ROOMS)}


def test_check_opens_one_room_and_takes_seconds() -> None:
    """A reader of notebook 01 waits for nothing that notebook 01 does not need."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True).stdout
    imported, loaded, seconds = json.loads(said)
    assert not FAR & {*imported, *loaded}
    ours = [name.split(".")[1:] for name in loaded if name.split(".")[0] == "pa_tutorial"]
    files = [PACKAGE.joinpath(*parts).with_suffix(".py") for parts in ours if parts]
    files = [file if file.exists() else file.with_suffix("") / "__init__.py" for file in files]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 4000
    # Of the processor, by one thread: 2 s on two cores of a server. With torch's threads, it waits
    # for them as long as the cores are busy.
    assert seconds < 6
