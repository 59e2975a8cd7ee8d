"""A paged attention kernel in a readable file: constants at the top, then its functions.

    mine = KernelFile("v1", load_key, qk_dot)   # v1.py of kernels/, with these functions of mine
    check("cuda_v1", mine, short=True)
    kernels = mine.module(HEAD_SIZE=64)         # the file with another constant, imported

A kernel for other sizes is the file with other values in its constants, as a C++ template is
compiled again for other arguments.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from importlib.util import cache_from_source, module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.step import DecodeStep, require_for_kernel
from pa_tutorial.checks.calls import same_numbers
from pa_tutorial.kernels.cuda_backends import geometry_of
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import (
    MARKS,
    NAMES,
    REDUCED,
    REDUCED_NAMES,
    SCORES_DONE,
    intermediates,
    intermediates_of_v2,
    scores,
)
from simt import Report, Trace, simulate
from simt.snapshots import Index

KERNELS = Path(__file__).with_name("kernels")
# Each file, and those whose definitions it changes.
FILES = {
    "sizes": ("sizes.py",),
    "naive": ("naive.py",),
    "v1": ("v1.py",),
    "vectors": ("v1.py", "vectors.py"),
    "v2": ("v1.py", "vectors.py", "v2.py"),
}
FOLDER = TemporaryDirectory(prefix="pa_tutorial_kernels_")
NUMBERS = count(1)
WRITTEN: dict[Path, set[str]] = {}  # a file that `write` wrote -> whose functions aren't ours
KINDS = ("docstring", "import", "from", "constant", "function")  # in the order of a file
NUM_THREADS = 128
OF_A_STEP = ("HEAD_SIZE", "BLOCK_SIZE", "NUM_QUERIES_PER_KV")  # constants that a step decides


class Arguments(NamedTuple):
    """What a launcher is called with, in its order: launch_v1(*arguments_of(step))."""

    out: Tensor
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    scale: np.float32
    block_tables: Tensor
    seq_lens: Tensor
    alibi_slopes: Tensor


def arguments_of(step: DecodeStep) -> Arguments:
    """The step's tensors as the kernels take them; out is NaN. bfloat16 is kept as uint16."""
    tensors = torch.full_like(step.q, torch.nan), step.q, step.k_cache, step.v_cache
    numbers = np.float32(step.scale), step.block_tables, step.seq_lens, step.float_slopes()
    return Arguments(*map(as_stored, tensors), *numbers)


def partials_of(step: DecodeStep, partition_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """What v2's first kernel writes, NaN until then: exp_sums, max_logits, tmp_out (stored)."""
    num_seqs, num_heads, head_size = step.q.shape
    shape = num_seqs, num_heads, -(-int(step.seq_lens.max()) // partition_size)
    exp_sums, max_logits = (torch.full(shape, torch.nan, device=step.q.device) for _ in range(2))
    return exp_sums, max_logits, as_stored(step.q.new_full((*shape, head_size), torch.nan))


class KernelFile:
    """One of the files of kernels/ as a backend, with a reader's functions in the place of ours.

    name       "naive", "v1", "vectors" (v1 with vector loads) or "v2"
    functions  kernels, device functions and launchers; each takes the place of the file's function
               of the same name, or is added to the file. Also texts, of constants for example

    Raises ValueError for another name.
    """

    layout = "vllm"
    reusable = False

    def __init__(self, name: str, *functions: Callable | str) -> None:
        if name not in FILES:
            raise ValueError(f"name is {name!r}; it must be one of {', '.join(FILES)}")
        self.name, self.functions = name, functions

    def text(self, **constants: object) -> str:
        """The whole file, with other values for some of its constants.

        A value is a number or a dtype, or the text of an expression: index_t="int32". Raises
        ValueError for a name that isn't a constant of the file.
        """
        files = [KERNELS / file for file in FILES[self.name]]
        text = reduce(updated, [file.read_text(encoding="utf-8") for file in files])
        ours = pieces(text)
        for one in self.functions:
            change = text_of(one)
            # After a cell with a syntax error, a name may still be our function of another file.
            if is_ours(one):
                (name,) = functions_in(change)
                change = ours.get(("function", name), change)
            text = updated(text, change)
        for name, value in constants.items():
            text = with_constant(text, name, value)
        return text

    def module(self, **constants: object) -> ModuleType:
        """The file with these constants, imported."""
        return imported(self.text(**constants))

    def write(self, path: str | Path, **constants: object) -> None:
        """Write the file, so that `from kernel_v1 import *` takes what stands in it now."""
        path = Path(path)
        path.write_text(self.text(**constants), encoding="utf-8")
        WRITTEN[path.resolve()] = self.written()
        # Python keeps a module for as long as it runs, and compares only whole seconds of a file.
        sys.modules.pop(path.stem, None)
        Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def written(self) -> set[str]:
        """The names of its functions that aren't ours: a reader's, or texts."""
        found: set[str] = set()
        for one in self.functions:  # the last one of a name counts
            names = functions_in(text_of(one))
            found = found - names if is_ours(one) else found | names
        return found

    def why_absent(self) -> None:
        """It runs everywhere: without a GPU, in the simulator."""
        return None

    def prepare(self, step: DecodeStep, partition_size: int = 512) -> "FileLaunch":
        """The launch for a step. partition_size: of v2.

        Raises TypeError or ValueError, naming the argument, for a step that no kernel takes.
        """
        partition_size = partition_size if self.name == "v2" else 0
        require_for_kernel(step, "vllm")
        geometry = geometry_of(step, NUM_THREADS, partition_size)
        constants = {name: getattr(geometry, name) for name in OF_A_STEP} | {"DTYPE": step.q.dtype}
        if partition_size:
            constants["PARTITION_SIZE"] = partition_size
        return LAUNCHES[self.name](self.module(**constants), step, geometry)

    def same_bits(self, backend: Backend, step: DecodeStep) -> list[str]:
        """The quantities of a step (qk, …, out) whose bits another backend has, too."""
        mine, theirs = self.prepare(step).probe(), backend.prepare(step).probe()
        return [name for name in theirs if same_numbers(mine[name], theirs[name])]


@dataclass(frozen=True)
class FileLaunch:
    """A step with the module that computes it: in the simulator, or on the GPU for CUDA tensors."""

    module: ModuleType
    step: DecodeStep
    geometry: Geometry

    @property
    def out(self) -> Tensor:
        return as_floats(self.arguments.out)

    @cached_property
    def arguments(self) -> Arguments:
        return arguments_of(self.step)

    @property
    def report(self) -> Report:
        """Of the kernel's last run in the simulator; of v2, its first kernel's."""
        return self.kernel.report

    def run(self, **options: object) -> Tensor:
        """The output. options: of the simulator, which runs CPU tensors."""
        if self.step.q.is_cuda:
            # Its launches are on the default stream; torch's own may be another.
            default, current = torch.cuda.default_stream(), torch.cuda.current_stream()
            default.wait_stream(current)
            self.launch()
            current.wait_stream(default)
        else:
            with simulate(**options):
                self.launch()
        return self.out

    def traced(self, block: Index = (0, 0, 0), **options: object) -> Trace:
        """What a thread block of the kernel (of v2: of the first) does, in the simulator."""
        with simulate(trace=[block], **options):
            self.launch_kernel()
        return self.report.trace

    def launch(self) -> None:
        self.launch_kernel()


class NaiveLaunch(FileLaunch):
    @property
    def kernel(self) -> Callable:
        return self.module.naive_kernel

    def launch_kernel(self) -> None:
        self.module.launch_naive(*self.arguments)

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run it in the simulator, with its options: `out` and qk."""
        with simulate(watch=SCORES_DONE, names="qk", **options):
            self.launch()
        qk = scores(self.report, SCORES_DONE, "qk", self.step.seq_lens)
        return {"qk": qk, "out": self.out}


class V1Launch(FileLaunch):
    @property
    def kernel(self) -> Callable:
        return self.module.paged_attention_v1

    def launch_kernel(self) -> None:
        self.module.launch_v1(*self.arguments)

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run it in the simulator, with its options: `out` and the intermediates."""
        with simulate(watch=MARKS, names=NAMES, **options):
            self.launch()
        return intermediates(self.report, self.geometry, self.step.seq_lens) | {"out": self.out}


class V2Launch(FileLaunch):
    @cached_property
    def partials(self) -> tuple[Tensor, Tensor, Tensor]:
        return partials_of(self.step, self.geometry.PARTITION_SIZE)

    @property
    def kernel(self) -> Callable:
        return self.module.paged_attention_v2

    def launch_kernel(self) -> None:
        self.module.launch_partitions(*self.partials, *self.arguments[1:])

    def launch_reduce(self) -> None:
        self.module.launch_reduce(self.arguments.out, *self.partials, self.step.seq_lens)

    def launch(self) -> None:
        self.launch_kernel()
        self.launch_reduce()

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run both kernels in the simulator, with its options: `out` and the intermediates."""
        with simulate(watch=MARKS, names=NAMES, **options):
            self.launch_kernel()
        with simulate(watch=REDUCED, names=REDUCED_NAMES, **options):
            self.launch_reduce()
        reports = self.report, self.module.reduce_partitions.report
        exp_sums, max_logits, _ = self.partials
        sizes = self.geometry, self.step.seq_lens
        found = intermediates_of_v2(*reports, *sizes, max_logits, exp_sums)
        return found | {"out": self.out}


LAUNCHES = {"naive": NaiveLaunch, "v1": V1Launch, "vectors": V1Launch, "v2": V2Launch}


def is_ours(function: object) -> bool:
    """Whether it comes from one of our files, and not from a reader's cell."""
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    if code is None:
        return False
    file = Path(code.co_filename)
    is_written = file.resolve() in WRITTEN and code.co_name not in WRITTEN[file.resolve()]
    return is_written or file.parent in (Path(FOLDER.name), KERNELS)


def is_unfinished(function: Callable) -> bool:
    """Whether `...` is still in it."""
    return any(
        isinstance(node, ast.Expr) and ast.unparse(node) == "..."
        for node in ast.walk(ast.parse(text_of(function)))
    )


def text_of(function: Callable | str) -> str:
    if isinstance(function, str):
        return function
    return textwrap.dedent(inspect.getsource(getattr(function, "py_func", function)))


def updated(text: str, change: str) -> str:
    """A module's text with the definitions of another: in place of those of the same name, or new.

    New constants follow the constants, new functions the functions.
    """
    both, new = pieces(text), pieces(change)
    for key, piece in new.items():
        if key in both and key[0] == "from":
            names = {alias for text in (both[key], piece) for alias in names_imported(text)}
            piece = f"from {key[1]} import {', '.join(sorted(names))}\n"
        both[key] = piece
    return joined(both)


def joined(parts: Mapping[tuple[str, str], str]) -> str:
    """The definitions as a module's text: imports, then constants, then functions."""
    return "".join(parts[key] for key in sorted(parts, key=lambda key: KINDS.index(key[0])))


def pieces(text: str) -> dict[tuple[str, str], str]:
    """(kind, name) of each definition -> its text, with the comments above it.

    What one file of kernels/ imports from another is left out: it is in the file already.
    """
    lines, end, found = text.splitlines(keepends=True), 0, {}
    for node in ast.parse(text).body:
        piece = "".join(lines[end : node.end_lineno])
        end = node.end_lineno
        match node:
            case ast.Expr():
                found["docstring", ""] = piece + "\n"
            case ast.ImportFrom() if node.module.startswith(f"{__package__}.kernels"):
                pass
            case ast.ImportFrom():
                found["from", node.module] = piece.lstrip("\n")
            case ast.Import():
                found["import", node.names[0].name] = piece.lstrip("\n")
            case ast.Assign():
                found["constant", ast.unparse(node.targets[0])] = piece
            case ast.FunctionDef():
                found["function", node.name] = "\n\n" + piece.lstrip("\n")
    return found


def functions_in(text: str) -> set[str]:
    return {name for kind, name in pieces(text) if kind == "function"}


def names_imported(text: str) -> list[str]:
    (node,) = ast.parse(text).body
    return [alias.name for alias in node.names]


def with_constant(text: str, name: str, value: object) -> str:
    """The text with another value in the line that assigns a constant."""
    words = value if isinstance(value, str) else repr(value)
    text, times = re.subn(rf"^{name} = .*", f"{name} = {words}", text, flags=re.MULTILINE)
    if times != 1:
        raise ValueError(f"{name} isn't a constant of this file: {times} lines assign it")
    return text


def imported(text: str) -> ModuleType:
    """A module with this text, in a temporary file, where the simulator finds its lines."""
    path = Path(FOLDER.name) / f"kernel_{next(NUMBERS)}.py"
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_floats(tensor: Tensor) -> Tensor:
    """The same memory as torch names it: what a kernel keeps as uint16 is bfloat16."""
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
