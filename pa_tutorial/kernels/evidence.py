"""What the compiler makes of a notebook's kernel: asked now, or as it was recorded.

Registers and instructions change with the version of the compiler, and for macOS there is none.
So the answers of one version are kept in evidence.json, each for one source. Where this version is
installed, it is asked; elsewhere the record is shown. Either way, the same is printed.
`make refresh` records what the notebooks ask.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pa_tutorial.kernels.compiled import compiled
from pa_tutorial.simt import ptx
from pa_tutorial.simt.arguments import arrays_of, named
from pa_tutorial.simt.gpus import H100
from pa_tutorial.simt.signatures import types_of
from pa_tutorial.simt.tables import Table

FILE = Path(__file__).with_name("evidence.json")
COMPILER = ("numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")
# Set while the notebooks are run to be committed: then the answers are kept.
RECORDING = "PA_TUTORIAL_RECORDING"
UNKNOWN = "?"  # the compiler of the record is not here, and the record is of another source
SPACES = ("global", "shared")
COLUMNS = (
    "kernel",
    "registers",
    "thread blocks",
    "stack bytes",
    "spilled bytes",
    *(f"{space} loads" for space in SPACES),
)
NOTE = "thread blocks: how many have enough registers on a multiprocessor; 2 x 16: two of 16 bytes"


def assembly(kernel: Callable, *arguments: object) -> str:
    """The instructions of a kernel in PTX, one a line, or UNKNOWN."""

    def ask() -> str:
        text = ptx(kernel, *arguments)
        body = text[text.index("{") + 1 : text.rindex("}")]
        return "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())

    return answer(kernel.py_func.__name__, kernel, ask)


def compared(kernels: Mapping[str, Callable], num_threads: int, *arguments: object) -> Table:
    """What an H100's machine code of each kernel needs: bytes of a thread, load instructions.

    kernels      name of the row -> a @cuda.jit kernel
    num_threads  of a thread block
    arguments    of all kernels
    """

    def of(kernel: Callable) -> list[int | str]:
        values = named(kernel.py_func, arguments)
        signature = types_of(kernel.py_func, (values | arrays_of(values)).values())
        made = compiled(kernel, signature, (9, 0))
        loads = {space: [] for space in SPACES}
        for (space, width), count in made.loads.items():
            loads.get(space, []).append(f"{count} x {width}")
        fit = H100.resident_blocks(num_threads, made.registers, 0)["registers"]
        return [
            made.registers,
            fit,
            made.stack_bytes,
            made.spill_bytes,
            *map(", ".join, loads.values()),
        ]

    rows = {
        name: answer(name, kernel, lambda kernel=kernel: of(kernel))
        for name, kernel in kernels.items()
    }
    unknown = [UNKNOWN] * (len(COLUMNS) - 1)
    table = [(name, *(unknown if row == UNKNOWN else row)) for name, row in rows.items()]
    return Table("On an H100 (sm_90)", COLUMNS, tuple(table), note=NOTE)


# Asked or recorded ------------------------------------------------------------------------------


def answer(name: str, kernel: Callable, ask: Callable) -> object:
    """ask(), where the compiler of the record is installed; else what was recorded under `name`
    for a kernel with this source, or UNKNOWN."""
    source = sha256("".join(sources(kernel)).encode()).hexdigest()[:16]
    if not is_asked():
        found = recorded()["answers"].get(name, {})
        return found["answer"] if found.get("source") == source else UNKNOWN
    said = ask()
    if RECORDING in os.environ:
        answers = recorded()["answers"] | {name: {"source": source, "answer": said}}
        text = json.dumps({"compiler": installed(), "answers": answers}, indent=1)
        FILE.write_text(text + "\n", encoding="utf-8", newline="\n")
    return said


def sources(kernel: Callable, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """The text of a kernel and of the device functions that it calls."""
    function = kernel.py_func
    yield inspect.getsource(function)
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if hasattr(called, "py_func") and name not in seen:
            yield from sources(called, (*seen, name))


def is_asked() -> bool:
    """Whether the compiler of the record is the one that is installed, or to be recorded."""
    is_recording = RECORDING in os.environ and all(installed().values())
    return is_recording or installed() == recorded()["compiler"]


def installed() -> dict[str, str | None]:
    """The packages that a kernel goes through, with their versions; None: not here."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: found(name) for name in COMPILER}


def recorded() -> dict[str, dict]:
    """What evidence.json holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))
