"""What the compiler makes of a kernel, without a GPU, asked now or taken from a record.

A kernel is compiled the way Numba does it at a launch: Python -> LTO IR -> nvJitLink -> machine
code, with or without fastmath as its decorator says.

Compiling takes seconds, registers and instructions change with the compiler's version, and macOS
has no compiler. So evidence.json keeps the answers that a notebook shows, each for one source text,
its constants and the types of its arguments. For these we show the record. For anything else we ask
the compiler, if it is the one that gave the answers. `make refresh` records what the notebooks ask,
and `make test-all` asks it all again.
"""

import inspect
import json
import os
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from unittest import mock

from numba import cuda, types

from pa_tutorial.arguments import require_type, whole_number
from pa_tutorial.private_names import PLACE
from simt import compile_ptx
from simt.compiling import Capability, checked_capability, require_compiler
from simt.gpus import H100, MAX_THREADS
from simt.kernel_arguments import arrays_of, named
from simt.signatures import types_of
from simt.tables import Table

CAPABILITIES: tuple[Capability, ...] = ((8, 0), (9, 0))

SPACES = ("global", "shared", "local", "const", "param")
GENERIC = "generic"  # the address tells the space, at run time
USED = r"(\d+) bytes stack.* (\d+) bytes spill stores, (\d+) bytes spill.*Used (\d+) registers"

FILE = Path(__file__).with_name("evidence.json")
COMPILER = ("numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")
# Set while the notebooks are run for committing; the answers are then recorded.
RECORDING = "PA_TUTORIAL_RECORDING"
ASKING = "PA_TUTORIAL_ASKING"  # set to ask also what is recorded
UNKNOWN = "?"  # the record's compiler isn't installed, and the record is for another source
# Of a kernel's globals, what becomes part of its code.
CONSTANTS = (int, float, tuple, types.Type)
NUMBERS = ("registers", "blocks fit", "stack bytes", "spilled bytes")
COLUMNS = ("kernel", *NUMBERS, "global loads", "shared loads")
NOTE = (
    "blocks fit: thread blocks on a multiprocessor, by registers. stack: arrays that aren't in\n"
    "registers. 2 x 16: two of 16 bytes"
)


# Reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU. Bytes are per thread.

    ptx          the assembly after linking, to which the register counts belong
    stack_bytes  local memory: arrays that aren't in registers
    spill_bytes  stored and loaded because there weren't enough registers
    """

    ptx: str
    registers: int
    stack_bytes: int
    spill_bytes: int

    @property
    def loads(self) -> dict[tuple[str, int], int]:
        """(space, bytes) -> number of load instructions of this width in the text."""
        return loads_of(self.ptx)


def loads_of(ptx: str) -> dict[tuple[str, int], int]:
    """The loads in a piece of PTX, counted by memory space and width: (space, bytes) -> count.

    An instruction in a loop counts once. One without a space counts as GENERIC.

    Raises ValueError for a load of unknown width.
    Source: NVIDIA, PTX ISA, "Data Movement and Conversion Instructions: ld".
    """
    words = re.findall(r"(?<![\w.%$])ld((?:\.[\w:]+)+)\s", ptx)
    return dict(sorted(Counter(_space_and_bytes(word[1:].split(".")) for word in words).items()))


def _space_and_bytes(words: list[str]) -> tuple[str, int]:
    """What follows `ld`, as in ["global", "nc", "L1::no_allocate", "v4", "u16"]: 8 bytes."""
    spaces = [word.split("::")[0] for word in words if word.split("::")[0] in SPACES]
    item = re.fullmatch(r"[busf](\d+)", words[-1])
    if item is None:
        raise ValueError(f"ld.{'.'.join(words)} is a load of unknown width")
    vector = re.fullmatch(r"v(\d)", words[-2]) if len(words) > 1 else None
    length = int(vector.group(1)) if vector else 1
    return (spaces[0] if spaces else GENERIC), length * int(item.group(1)) // 8


# Compiling ----------------------------------------------------------------------------------------


def compiled(kernel: Callable, *arguments: object, capability: Capability = (9, 0)) -> Compiled:
    """Compile a @cuda.jit kernel for one GPU and the types of these arguments. It takes some
    seconds the first time. Raises as require_compiler."""
    require_compiler()
    require_type(hasattr(kernel, "py_func"), "kernel", kernel, "a @cuda.jit kernel")
    return _compiled(kernel, signature_of(kernel, arguments), checked_capability(capability))


@cache
def _compiled(
    kernel: Callable, signature: tuple[types.Type, ...], capability: Capability
) -> Compiled:
    return assembled(lto_ir(kernel, signature, capability), capability)


def signature_of(kernel: Callable, arguments: tuple[object, ...]) -> tuple[types.Type, ...]:
    """The types for which a launch with these arguments compiles a kernel."""
    by_name = named(kernel.py_func, arguments)
    return tuple(types_of(kernel, (by_name | arrays_of(by_name)).values()))


def lto_ir(kernel: Callable, signature: tuple[types.Type, ...], capability: Capability) -> bytes:
    """A @cuda.jit kernel in the form that the linker takes."""
    # Device functions ask for "the current device" while they are compiled, and there is none.
    device = SimpleNamespace(compute_capability=capability)
    options = {"fastmath": kernel.targetoptions["fastmath"], "abi": "numba", "output": "ltoir"}
    with (
        mock.patch(PLACE["get_current_device"], return_value=device),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return cuda.compile(kernel.py_func, signature, device=False, cc=capability, **options)[0]


def linked(code: bytes, capability: Capability, target: str) -> tuple[bytes, str]:
    """The "ptx" or "cubin" of LTO IR, and the linker's log."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(
        arch=arch(capability),
        link_time_optimization=True,
        ptx=target == "ptx" or None,
        ptxas_options=["-v"],
    )
    linker = Linker(ObjectCode.from_ltoir(code), options=options)
    result = linker.link(target)
    return bytes(result.code), linker.get_info_log()


def arch(capability: Capability) -> str:
    """(9, 0) -> "sm_90" """
    return f"sm_{capability[0]}{capability[1]}"


def assembled(code: bytes, capability: Capability) -> Compiled:
    """LTO IR to machine code. RuntimeError if the linker doesn't say what a thread needs."""
    ptx, _ = linked(code, capability, "ptx")
    _, log = linked(code, capability, "cubin")
    used = re.search(USED, log, re.DOTALL)
    if used is None:
        raise RuntimeError(f"the linker's log doesn't say what a thread needs:\n{log}")
    stack, stored, loaded, registers = map(int, used.groups())
    return Compiled(ptx.decode(), registers, stack, stored + loaded)


# What a notebook asks -----------------------------------------------------------------------------


def assembly(kernel: Callable, *arguments: object) -> str:
    """The instructions of a kernel in PTX, one per line, or UNKNOWN."""
    require_type(hasattr(kernel, "py_func"), "kernel", kernel, "a @cuda.jit kernel")

    def ask() -> str:
        text = compile_ptx(kernel, *arguments)
        body = text[text.index("{") + 1 : text.rindex("}")]
        return "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())

    return answer(kernel.py_func.__name__, kernel, arguments, ask)


def made_of(kernel: Callable, what: str, *arguments: object) -> str:
    """What the compiler made of a device function, or of the lines that hold a text, in PTX: each
    instruction, how often it is there, and the operands of the first.

    what       the name of a device function that the kernel calls, or a piece of a line
    arguments  of a launch, whose types the kernel is compiled for
    """
    require_type(hasattr(kernel, "py_func"), "kernel", kernel, "a @cuda.jit kernel")
    require_type(isinstance(what, str), "what", what, "a function's name or a piece of a line")

    known = [one.py_func for one in kernel.py_func.__globals__.values() if hasattr(one, "py_func")]
    of_that_name = [function for function in known if function.__name__ == what]
    texts: dict[tuple[str, int], str] = {}
    for function in of_that_name or (kernel.py_func, *known):
        lines, first = inspect.getsourcelines(function)
        file, wanted = function.__code__.co_filename, "" if of_that_name else what
        texts |= {(file, n): text.strip() for n, text in enumerate(lines, first) if wanted in text}

    def ask() -> str:
        from simt.ptx import parse, ptx_by_line

        ptx = parse(compile_ptx(kernel, *arguments, lineinfo=True))
        made = [one for file, n in texts for one in ptx_by_line(ptx, file).get(n, ())]
        if not made:
            return f"nothing: no line that is compiled holds {what!r}"
        counts = Counter(one.split(" ")[0] for one in made)
        first = {one.split(" ")[0]: one for one in reversed(made)}
        return "\n".join(f"{count:3} x {first[name]}" for name, count in counts.items())

    heading = [what] if of_that_name else texts.values()
    return "\n".join([*heading, answer(f"PTX of {what}", kernel, arguments, ask)])


def compared(kernels: Mapping[str, Callable], num_threads: int, *arguments: object) -> Table:
    """What each kernel's machine code needs on an H100: bytes per thread, load instructions.

    kernels      label in the table -> a @cuda.jit kernel
    num_threads  per thread block
    arguments    the same for all kernels
    """
    fit = isinstance(kernels, Mapping) and all(hasattr(k, "py_func") for k in kernels.values())
    require_type(fit, "kernels", kernels, "a dictionary from labels to @cuda.jit kernels")
    num_threads = whole_number("num_threads", num_threads, 1, MAX_THREADS)

    def row(kernel: Callable) -> list[int | str]:
        made = compiled(kernel, *arguments)
        fit = H100.resident_blocks(num_threads, made.registers, 0)["registers"]
        loads = {space: [] for space in ("global", "shared")}
        for (space, width), count in made.loads.items():
            loads.get(space, []).append(f"{count} x {width}")
        numbers = made.registers, fit, made.stack_bytes, made.spill_bytes
        return [*numbers, *map(", ".join, loads.values())]

    rows, unknown = [], [UNKNOWN] * (len(COLUMNS) - 1)
    for name, kernel in kernels.items():
        found = answer(name, kernel, arguments, lambda kernel=kernel: row(kernel))
        rows.append((name, *(unknown if found == UNKNOWN else found)))
    return Table("On an H100 (sm_90)", COLUMNS, tuple(rows), note=NOTE)


def answer(
    name: str,
    kernel: Callable,
    arguments: Sequence[object],
    ask: Callable[[], object],
    counts: Sequence[int] = (),
) -> object:
    """The answer that is recorded under `name` for this kernel and arguments of these types. If
    there is none, ask(), where the record's compiler is installed, or else UNKNOWN.

    counts  of a run, if the answer is about one
    """
    types_ = [str(getattr(argument, "dtype", type(argument))) for argument in arguments]
    text = "".join([*sources(kernel), *types_, *map(str, counts)])
    source = sha256(text.encode()).hexdigest()[:16]
    found = recorded()["answers"].get(name, {})
    if found.get("source") == source and not {RECORDING, ASKING} & os.environ.keys():
        return found["answer"]
    if not is_asked():
        return UNKNOWN
    said = ask()
    if RECORDING in os.environ:
        answers = recorded()["answers"] | {name: {"source": source, "answer": said}}
        text = json.dumps({"compiler": installed(), "answers": answers}, indent=1)
        FILE.write_text(text + "\n", encoding="utf-8", newline="\n")
    return said


def sources(kernel: Callable, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """The source of a kernel and of the device functions that it calls, with their constants."""
    function = kernel.py_func
    yield without_comments(inspect.getsource(function))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if hasattr(value, "py_func") and name not in seen:
            yield from sources(value, (*seen, name))
        elif isinstance(value, CONSTANTS):
            yield f"{name} = {value}\n"


def without_comments(source: str) -> str:
    """The tokens of a function: neither a comment nor a line break in brackets changes them."""
    tokens = tokenize.generate_tokens(StringIO(dedent(source)).readline)
    return " ".join(t.string for t in tokens if t.type not in (tokenize.COMMENT, tokenize.NL))


def is_asked() -> bool:
    """Whether to ask the compiler: it is the one of the record, or we are recording."""
    is_recording = RECORDING in os.environ and all(installed().values())
    return is_recording or installed() == recorded()["compiler"]


def installed() -> dict[str, str | None]:
    """The packages that compile a kernel, with their versions; None: not installed."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: found(name) for name in COMPILER}


def recorded() -> dict[str, dict]:
    """The contents of evidence.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))
