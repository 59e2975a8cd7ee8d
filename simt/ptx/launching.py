"""run_ptx: a compiled kernel, executed without a GPU."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from types import FunctionType, ModuleType

import numpy as np
from numpy.lib.array_utils import byte_bounds

from simt.arguments import require, whole_number
from simt.compiling import checked_capability, compile_ptx
from simt.device_array import numbers_of
from simt.gpus import WARP_SIZE
from simt.kernel_arguments import arrays_of, function_of, named, plain_number
from simt.launch_options import (
    Size,
    as_tuple,
    known_checks,
    require_limits,
    require_shared_fits,
    three_sizes,
)
from simt.machine import CHECKS, MAX_STATIC_SHARED
from simt.names import plain_function
from simt.ptx.accesses import space_of
from simt.ptx.batches import Doubt, may_run_in_batches
from simt.ptx.endless import Watch
from simt.ptx.instructions import Translator
from simt.ptx.machine import Machine, PtxFault
from simt.ptx.memory import WINDOWS, Access, GlobalMemory, Region, Space
from simt.ptx.numbers import DTYPES
from simt.ptx.parsing import Instruction, Kernel, PtxError, Variable, parse
from simt.ptx.sources import sources_of
from simt.ptx.types import require_types
from simt.report import Finding, Report
from simt.source import Site, Source
from simt.trace import KINDS, NO_LANE, RECORD, SPACES, Trace, TracedArray
from simt.tuples import flattened

MAX_STEPS = 1_000_000  # basic blocks
NUMBER = re.compile(r"(?<![\w.%$])\d{5,}(?![\w.])")  # an address, perhaps
ACCESSES = {
    **{"ld": "load", "ldu": "load", "ldmatrix": "load"},
    **{"st": "store", "stmatrix": "store", "atom": "atomic", "red": "atomic"},
}
CLASSES = {
    "matrix": ("mma",),
    "barrier": ("bar", "barrier"),
    "shuffle": ("shfl",),
    "vote": ("vote", "activemask", "match", "redux"),
    "branch": ("bra", "call", "ret", "exit"),
    "move": ("mov", "cvt", "cvta", "selp"),
    "logic": (
        *("setp", "and", "or", "xor", "not", "shl", "shr"),
        *("lop3", "prmt", "bfe", "bfi", "bfind"),
    ),
}
FLOATS = ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2")


@dataclass
class PtxReport:
    """What a run did.

    issued    warp instructions, by class
    function  of a kernel that Numba compiled
    """

    machine: Machine
    memory: GlobalMemory
    issued: Counter[str]
    function: FunctionType | None = None

    @property
    def kernel(self) -> Kernel:
        return self.machine.kernel

    @property
    def num_issued(self) -> int:
        return self.issued.total()

    def __str__(self) -> str:
        name = self.function.__name__ if self.function else self.kernel.name
        return str(Report(name, self.machine.grid, self.machine.block, "", self.checks))

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(self.machine.checks)

    @property
    def findings(self) -> list[Finding]:
        """None: a mistake raises PtxFault, and then there is no report."""
        return []

    @cached_property
    def trace(self) -> Trace:
        """Every access to global, shared and local memory, as the simulator records it, so the
        tables of simt count it. Its places are the instructions of the PTX."""
        return _trace_of(self.machine, self.memory, self.function)

    @property
    def dynamic_start(self) -> int:
        """The column of `shared` at which dynamic shared memory begins."""
        return (self.kernel.dynamic_offset or self.kernel.num_bytes["shared"]) // 4

    def shared(self, barrier: int) -> np.ndarray:
        """[num_blocks, n] float32: what was in shared memory when a thread block's threads had all
        reached its barrier of this number, counted from 0. NaN: not written, or the thread block
        has fewer barriers. Raises ValueError unless the run had keeps_shared=True."""
        kept = self.machine.at_barriers
        require(bool(kept), "keeps_shared", False, "True in run_ptx, in a kernel with a barrier")
        found = np.full((len(kept[0][0]), kept[0][1].shape[1] // 4), np.nan, np.float32)
        passed = np.zeros(len(found), np.int64)
        for waits, shared in kept:
            here = waits & (passed == barrier)
            found[here] = shared[here, : found.shape[1] * 4].copy().view(np.float32)
            passed[waits] += 1
        return found


def run_ptx(
    kernel: Callable | str,
    grid: Size,
    block: Size,
    *args: object,
    shared_bytes: int = 0,
    checks: str | Sequence[str] = CHECKS,
    unwritten: str | Sequence[str] = (),
    compute_capability: tuple[int, int] = (8, 0),
    text: str = "",
    lineinfo: bool = True,
    keeps_shared: bool = False,
    name: str = "",
    max_steps: int = MAX_STEPS,
) -> PtxReport:
    """Run a kernel as it was compiled.

    kernel        a @cuda.jit kernel, which Numba compiles for `compute_capability`; or PTX text
    grid, block   as in kernel[grid, block]: a number or up to three
    args          a Numba kernel's: arrays and CPU tensors, written in place, and numbers. A text's:
                  one for each parameter, where an array stands for its address
    shared_bytes  dynamic shared memory of a thread block
    checks        as for `simt.launch`
    text          a Numba kernel's PTX, if it has been compiled before
    unwritten     arrays that hold nothing yet, by parameter; a text's are "argument 0" and so on
    lineinfo      compile with line numbers, so that a fault and the trace name lines of Python. The
                  compiler then makes the same memory accesses, shuffles and floating-point
                  arithmetic, but computes some addresses elsewhere: in v1, 3 % fewer warp
                  instructions. False: as for a launch
    keeps_shared  keep shared memory as it is at each barrier, for report.shared; not if
                  races are looked for
    name          a piece of the kernel's name, if the text has several
    max_steps     basic blocks that may be executed before the kernel counts as hanging

    Raises PtxError for text that can't be run, PtxFault for a mistake in the kernel, TypeError and
    ValueError for arguments that don't match its parameters.
    """
    grid, block = three_sizes("grid", grid), three_sizes("block", block)
    require_limits(grid, block, shared_bytes)
    checks = known_checks(checks)
    whole_number("max_steps", max_steps, 1)
    if isinstance(kernel, str):
        function, parsed = None, parse(kernel, name)
        by_name = {f"argument {number}": value for number, value in enumerate(args)}
    else:
        function = function_of(kernel)
        by_name = flattened(named(function, args))
        for argument, value in by_name.items():
            if argument not in arrays_of(by_name):
                plain_number(argument, value)
        capability = checked_capability(compute_capability, "compute_capability")
        text = text or compile_ptx(kernel, *args, compute_capability=capability, lineinfo=lineinfo)
        parsed = parse(text)
    require_types(parsed)
    require_static_shared(parsed)
    require_shared_fits(parsed.num_bytes["shared"], shared_bytes)
    flatten = _values_of_text if isinstance(kernel, str) else _values_of_numba
    inside: dict[str, np.ndarray] = {}
    if function is not None:
        _compiled_in(function, inside, set())

    def run(batched: bool) -> PtxReport:
        arrays = arrays_of(by_name) | parsed.arrays | inside
        memory = GlobalMemory(arrays, as_tuple(unwritten))
        entry = _packed(parsed, flatten(by_name, memory))
        kept = keeps_shared and "race" not in checks
        machine = Machine(
            parsed, grid, block, entry, memory.space, checks, max_steps, shared_bytes, kept, batched
        )
        places = _addresses(parsed, inside, memory)
        machine.run(Translator(machine, places).step, Watch(machine).look)
        memory.copy_back()
        return PtxReport(machine, memory, _by_class(machine), function)

    if "race" in checks and may_run_in_batches(parsed):
        with suppress(Doubt, PtxFault, PtxError):  # they are settled below, in order
            return run(batched=True)
    return run(batched=False)


def require_static_shared(kernel: Kernel) -> None:
    """Refuse static shared arrays that NVIDIA's assembler, ptxas, refuses."""
    static = kernel.num_bytes["shared"]
    if static > MAX_STATIC_SHARED:
        what = f"{static} bytes of static shared arrays; ptxas allows {MAX_STATIC_SHARED}"
        raise PtxError(f"{kernel.name} has {what}")


# Arguments ---------------------------------------------------------------------------------------


def _compiled_in(function: FunctionType, found: dict[str, np.ndarray], seen: set) -> None:
    """Enter the global device arrays that a function may use, and those that it calls, by name:
    Numba compiles in their addresses.

    seen  the functions that were looked at
    """
    seen.add(function)
    code, cells = function.__code__, function.__closure__ or ()
    used = {name: function.__globals__.get(name) for name in code.co_names}
    modules = [value for value in used.values() if isinstance(value, ModuleType)]
    used |= {n: getattr(one, n) for one in modules for n in code.co_names if hasattr(one, n)}
    used |= {n: cell.cell_contents for n, cell in zip(code.co_freevars, cells, strict=True)}
    for name, value in flattened(used).items():
        array, inner = numbers_of(value), plain_function(value)
        if array is not value and isinstance(array, np.ndarray):
            is_new = found.setdefault(f"global {name}", array) is array
            found |= {} if is_new else {f"global {name} of {function.__name__}": array}
        elif isinstance(inner, FunctionType) and inner not in seen:
            _compiled_in(inner, found, seen)


def _bytes_of(array: np.ndarray) -> range:
    return range(*byte_bounds(array))


def _addresses(
    kernel: Kernel, arrays: Mapping[str, np.ndarray], memory: GlobalMemory
) -> dict[str, int]:
    """The addresses of these arrays in the kernel's text -> those that they have in the launch."""
    texts = {text for one in kernel.instructions for text in NUMBER.findall(" ".join(one.operands))}
    return {
        text: int(text) - array.ctypes.data + memory.pointers[name]
        for name, array in arrays.items()
        for text in texts
        if int(text) in _bytes_of(array)
    }


def _values_of_numba(by_name: dict[str, object], memory: GlobalMemory) -> list:
    """What Numba passes: for an array two pointers that kernels don't use, its number of items,
    their size, its address, its shape and its strides in bytes; for a record its address.

    Source: numba-cuda, dispatcher.py, `_prepare_args`.
    """
    values: list = []
    for name, value in by_name.items():
        if name not in memory.pointers:
            values += _numbers_of(value)
            continue
        array = memory.arrays[name]
        is_record = array.dtype.names is not None and array.ndim == 0
        if not is_record:
            values += [0, 0, array.size, array.itemsize]
        values += [memory.pointers[name], *array.shape, *array.strides]
    return values


def _numbers_of(value: object) -> list:
    """A number as it is passed: a complex one as two, a float16 as its bits, None as 0."""
    if isinstance(value, complex | np.complexfloating):
        return [value.real, value.imag]
    if value is None:
        return [0]
    return [value.view(np.uint16) if isinstance(value, np.float16) else value]


def _values_of_text(by_name: dict[str, object], memory: GlobalMemory) -> list:
    return [memory.pointers.get(name, value) for name, value in by_name.items()]


def _packed(kernel: Kernel, values: list) -> Space:
    """The memory of the parameters. Raises ValueError or TypeError if the values aren't theirs."""
    if len(values) != len(kernel.parameters):
        had = len(kernel.parameters)
        raise ValueError(f"args gives {len(values)} values; {kernel.name} has {had} parameters")
    packed = Space("entry", kernel.num_bytes["entry"])
    packed.complete.add(0)
    pairs = zip(kernel.parameters.values(), values, strict=True)
    for number, (parameter, value) in enumerate(pairs):
        dtype = DTYPES[parameter.type]
        is_float = parameter.type in FLOATS
        allowed = (float, np.floating, int, np.integer) if is_float else (int, np.integer)
        is_number = isinstance(value, allowed) and parameter.num_bytes == dtype.itemsize
        if not (is_number and _fits(value, dtype)):
            what = f"a .{parameter.type} of {parameter.num_bytes} bytes; {value!r} isn't one"
            raise TypeError(f"args: parameter {number} of {kernel.name} is {what}")
        here = slice(parameter.offset, parameter.offset + parameter.num_bytes)
        if is_float:
            packed.data[here] = np.array([value], dtype).view(np.uint8)
        else:
            bits = int(value) & (1 << 8 * dtype.itemsize) - 1
            packed.data[here] = np.array([bits], f"u{dtype.itemsize}").view(np.uint8)
    return packed


def _fits(value: float, dtype: np.dtype) -> bool:
    """Whether a number has a place in a parameter: as a signed or an unsigned integer, or a float
    that doesn't become infinite."""
    plain = value.item() if isinstance(value, np.generic) else value
    if dtype.kind == "f":
        return not float(np.finfo(dtype).max) < abs(plain) < np.inf
    bits = 8 * dtype.itemsize
    return -(1 << bits - 1) <= plain < 1 << bits


# The report --------------------------------------------------------------------------------------


def _by_class(machine: Machine) -> Counter[str]:
    issued: Counter[str] = Counter()
    for start, warps in machine.num_issued.items():
        for number in range(start, machine.ends[start]):
            issued[class_of(machine.kernel.instructions[number].words)] += warps
    return issued


@cache
def class_of(words: tuple[str, ...]) -> str:
    """What kind of work an instruction is, by the words of its name: "float", "integer", "logic",
    "load global", "barrier", …"""
    opcode = words[0]
    if opcode in ACCESSES:
        return f"{ACCESSES[opcode]} {space_of(words) or 'generic'}"
    if opcode == "cp":
        return "copy" if words[2] in ("ca", "cg") else "copy group"
    if opcode in ("bar", "barrier") and "warp" in words:
        return "syncwarp"
    arithmetic = "float" if words[-1] in FLOATS else "integer"
    return next((name for name, opcodes in CLASSES.items() if opcode in opcodes), arithmetic)


def _trace_of(machine: Machine, memory: GlobalMemory, function: FunctionType | None) -> Trace:
    kernel, log, space = machine.kernel, machine.log, memory.space
    arrays = [_traced(memory, region) for region in memory.regions]
    inner = {name: one for name, one in kernel.variables.items() if one.space in SPACES}
    arrays += [_inner_array(machine, *item) for item in inner.items()]
    each = [_records_of(number, access, space, arrays) for number, access in enumerate(log)]
    records = np.concatenate([np.zeros(0, RECORD), *each])
    if machine.batched:  # as if one thread block had run after another
        records = records[np.argsort(records["block"], kind="stable")]
    if log:  # every warp that takes part in an access executes an instruction
        new = np.zeros(len(records), bool)
        for field in ("instruction", "block", "warp"):
            new |= np.diff(records[field], prepend=-1) != 0
        records["instruction"] = np.cumsum(new) - 1
    accesses = {access.instruction for access in log}
    sources = sources_of(kernel, function, accesses)
    lines = {(source.file, number): source for source in sources for number in source.lines}
    sites = tuple(_site(kernel, instruction, lines) for instruction in kernel.instructions)
    name, file = kernel.name, ""
    if function is not None:
        name, file = function.__name__, function.__code__.co_filename
    found = records.view(np.recarray), sites, tuple(arrays), ((),), sources
    return Trace(name, file, machine.grid, machine.block, *found)


def _traced(memory: GlobalMemory, region: Region) -> TracedArray:
    """Arrays that overlap go by the first one's name."""
    name = region.names[0]
    array = memory.arrays[name]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TracedArray(name, "global", array.dtype, array.shape, strides, memory.pointers[name])


def _inner_array(machine: Machine, name: str, found: Variable) -> TracedArray:
    """A shared or local array, as bytes: PTX doesn't say what is in it."""
    shape = (found.num_bytes or machine.shared_bytes,)
    return TracedArray(name, found.space, np.dtype(np.uint8), shape, (1,), found.offset)


def _records_of(number: int, access: Access, space: Space, arrays: list[TracedArray]) -> np.ndarray:
    """One record per lane; `instruction` is the number of the access, so far."""
    records, threads = np.zeros(len(access.addresses), RECORD), access.threads
    records["block"] = access.blocks
    records["warp"], records["lane"] = threads // WARP_SIZE, threads % WARP_SIZE
    records["place"], records["instruction"] = access.instruction.number, number
    records["kind"], records["space"] = KINDS.index(access.kind), SPACES.index(access.space)
    records["num_bytes"], records["source_lane"] = access.num_bytes, NO_LANE
    if access.space == "global":
        records["array"] = space.owner[access.addresses] - 1
        records["address"] = access.addresses + WINDOWS["global"]
    else:
        own = [n for n, array in enumerate(arrays) if array.space == access.space]
        starts = [arrays[n].address for n in own]
        order = np.argsort(starts)
        found = np.searchsorted(np.array(starts)[order], access.addresses, side="right") - 1
        records["array"] = np.array(own)[order][found]
        records["address"] = access.addresses
    return records


def _site(
    kernel: Kernel, instruction: Instruction, sources: Mapping[tuple[str, int], Source]
) -> Site:
    """Where an instruction comes from: its line of the source if .loc says so and the source is
    there, else of the PTX.

    sources  by file and line
    """
    text, place = instruction.text, instruction.source
    if place not in sources:
        place = "PTX", instruction.line
    if place not in sources:
        return Site(kernel.name, *place, text, text)
    source = sources[place]
    return Site(source.name, *place, text, source.line(place[1]))
