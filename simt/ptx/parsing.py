"""PTX as text: a kernel's parameters, memory, registers and instructions.

Source: NVIDIA, "Parallel Thread Execution ISA", chapters "Syntax" and "State Spaces, Types, and
Variables".
"""

import linecache
import math
import re
from bisect import bisect_right
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from simt.ptx.numbers import DTYPES, literal, size_of
from simt.tracebacks import ShortInNotebooks

# Comments, and strings, in which // may stand.
COMMENT = re.compile(r"\"[^\"\n]*\"|//[^\n]*|/\*.*?\*/", re.S)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?[^{;]*\{")
FUNCTION = re.compile(r"\.func\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?[^{;]*\{")
CALL = re.compile(r"call(?:\.uni)?\s+(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^)]*)\))?;?$")
VARIABLE = re.compile(
    r"\.(shared|local|param)\s*(?:\.align\s+(\d+)\s*)?\.(\w+)\s+(?:\.ptr\b.*?)?"
    r"([\w$]+)(?:\[(\d*)\])?\s*;?$"
)
# One outside of functions: what is before its space, its type, name, sizes and first values.
GLOBAL = re.compile(
    r"^[ \t]*((?:\.\w+\s+)*)\.(?:global|const)\b\s*(?:\.align\s+\d+\s*)?\.(\w+)\s+([\w$]+)"
    r"((?:\[\d*\])*)\s*(?:=\s*([^;]*))?;",
    re.M,
)
SHARED = re.compile(r"^[ \t]*(?:\.\w+\s+)*\.shared\b[^\n;]*?([\w$]+)(?:\[\d*\])?\s*;", re.M)
# The pieces of a body. A statement ends with a semicolon, but .loc doesn't.
PIECE = re.compile(
    r"\s*(?:(?P<place>\.loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name[^,]*,\s*inlined_at"
    r"\s+\d+\s+\d+\s+\d+)?|\.file\b[^\n]*)|(?P<brace>[{}])|(?P<label>[\w$%.]+):(?!:)"
    r"|(?P<statement>(?:[^;{}]|\{[^{};]*\})+);)"
)
STATEMENT = re.compile(r"(?:@(!?[\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
NAME = re.compile(r"(?<![\w$.])%?[A-Za-z_$][\w$]*")
RETURN = "return"  # the label behind a function's body
DYNAMIC_ALIGNMENT = 16
OLDEST = 70  # sm_70: since Volta, a warp's lanes run independently, as here


class PtxError(ShortInNotebooks, ValueError):
    """The text isn't PTX that can be run here; the message has the line."""


class Instruction(NamedTuple):
    """One instruction.

    number  of the kernel's, counted from 0
    guard   "%p1" or "!%p1": the lanes that execute it; "": all
    words   of its name: ("ld", "global", "v4", "f32")
    line    where it is in the text, counted from 1
    source  (file, line) of the kernel's source, from .loc; None if it isn't known
    caller  of a function that was inlined: where it was called
    """

    number: int
    guard: str
    words: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    line: int
    source: tuple[str, int] | None
    caller: tuple[str, int] | None = None

    @property
    def opcode(self) -> str:
        return self.words[0]

    @property
    def type(self) -> str:
        return self.words[-1]

    def __str__(self) -> str:
        found = f"line {self.line} of the PTX: {self.text}"
        if self.source:
            found += f"\n    from {_quoted(self.source)}"
        if self.caller and not (self.source and self.source[0] == self.caller[0]):
            found += f"\n    called in {_quoted(self.caller)}"
        return found

    def require(self, *words: str, operands: int | None = None) -> None:
        """Raises PtxError if its name has other words between the first and the type, for they
        would change what it computes, or if it doesn't have so many operands."""
        found = {word.partition("::")[0] for word in self.words[1:-1]}
        if not found <= set(words) or operands not in (None, len(self.operands)):
            raise self.unknown()

    def unknown(self) -> PtxError:
        return PtxError(f"the interpreter doesn't know this instruction: {self}")


def _quoted(place: tuple[str, int]) -> str:
    file, line = place
    code = linecache.getline(file, line).strip()
    return f"line {line} of {file}:  {code}" if code else f"line {line} of {file}"


@dataclass(frozen=True)
class Variable:
    """An array, or a parameter: its place in its space. The dynamic shared array has 0 bytes."""

    space: str
    type: str
    offset: int
    num_bytes: int


@dataclass
class Kernel:
    """A kernel, parsed.

    registers   name -> type; a name in an inner scope gets a suffix
    labels      name -> number of the instruction that follows; suffixes as for registers
    variables   name -> Variable. The kernel's parameters are in the space "entry"; in "param" is
                what calls hand over and get back
    num_bytes   space -> bytes: of all threads in "entry", of a thread block in "shared", of a
                thread in "local" and "param"
    arrays      name -> what is at the start in a variable outside of functions, in global or
                constant memory
    """

    name: str
    registers: dict[str, str] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    num_bytes: Counter[str] = field(default_factory=Counter)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def declare(self, text: str, line: int, suffix: str = "", is_entry: bool = False) -> str:
        """Read a declaration such as .shared .align 16 .b8 name[256]; give it the place after those
        before it. Nothing after the name: one item; empty brackets: the dynamic shared array,
        which comes last. Returns the name, without the suffix."""
        found = VARIABLE.search(" ".join(text.split()))
        if found is None:
            raise PtxError(f"line {line} of the PTX: what variable is {text.strip()!r}?")
        space, alignment, type_, name, items = found.groups()
        space = "entry" if is_entry else space
        if name + suffix in self.variables:  # of a function that was called before
            return name
        size = _size(type_, line)
        offset = round_up(self.num_bytes[space], int(alignment or size))
        if items == "":
            new = Variable(space, type_, round_up(offset, DYNAMIC_ALIGNMENT), 0)
        else:
            new = Variable(space, type_, offset, size * int(items or 1))
            self.num_bytes[space] = offset + new.num_bytes
        self.variables[name + suffix] = new
        return name

    @property
    def parameters(self) -> dict[str, Variable]:
        return {name: one for name, one in self.variables.items() if one.space == "entry"}

    @property
    def dynamic_offset(self) -> int | None:
        """Where the dynamic shared memory begins; None: there is none."""
        found = (one.offset for one in self.variables.values() if not one.num_bytes)
        return max(found, default=None)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def parse(text: str, name: str = "") -> Kernel:
    """The kernel of a PTX text.

    name  a piece of the kernel's name, if the text has several

    Raises PtxError, with the line, for text that isn't PTX, is for another target than a GPU of
    compute capability 7.0 or newer, is cut short, or has no such kernel.
    """
    blank = COMMENT.sub(
        lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0]), text
    )
    module = _Module(blank)
    _require_target(module)
    every = {entry[1]: entry for entry in ENTRY.finditer(blank)}
    if not every:
        last = module.line(len(blank.rstrip()))
        raise PtxError(f"line {last} of the PTX: the text ends, and no kernel (.entry) has begun")
    names = [name] if name in every else [one for one in every if name in one]
    if len(names) != 1:
        found = ", ".join(every)
        raise PtxError(f"name is {name!r}; it must be part of exactly one kernel's name: {found}")
    entry = every[names[0]]
    kernel = Kernel(entry[1])
    for parameter in filter(None, map(str.strip, (entry[2] or "").split(","))):
        kernel.declare(parameter, module.line(entry.start()), is_entry=True)
    _Body(kernel, module, entry.end()).read()
    used = " ".join(one.text for one in kernel.instructions)

    def is_used(name: str) -> bool:
        found = re.escape(name)  # what is before it comes last: so it is found faster
        return re.search(rf"{found}(?![\w$])(?<![\w$]{found})", used) is not None

    arrays = [one for one in SHARED.finditer(blank[: entry.start()]) if is_used(one[1])]
    for array in sorted(arrays, key=lambda one: "[]" in one[0]):
        kernel.declare(array[0], module.line(array.start(1)))
    for found in GLOBAL.finditer(blank):
        if is_used(found[3]):
            kernel.arrays[found[3]] = _array_of(found, module.line(found.start(3)))
    return kernel


def _array_of(found: re.Match, line: int) -> np.ndarray:
    """A variable outside of functions, with its first values; zeros follow."""
    linkage, type_, name, sizes, values = found.groups()
    _size(type_, line)
    if ".extern" in linkage:
        raise PtxError(f"line {line} of the PTX: {name} is .extern, and nothing else declares it")
    try:
        items = [literal(text, DTYPES[type_]) for text in re.findall(r"[^\s{},]+", values or "")]
        shape = [int(size or len(items)) for size in re.findall(r"\[(\d*)\]", sizes)]
        array = np.zeros(math.prod(shape), DTYPES[type_])
        rows = re.findall(r"{([^{}]*)}", values or "")
        if len(rows) > 1 and any(row.count(",") + 1 != shape[-1] for row in rows):
            raise ValueError("a row isn't full")
        array[: len(items)] = items
    except ValueError:  # such as the address of another
        what = f"{name} isn't an array of numbers, in full rows"
        raise PtxError(f"line {line} of the PTX: {what}") from None
    return array


class _Module:
    """A text without comments, and what is in it outside of kernels.

    starts     where its lines begin
    files      number -> name, from .file
    functions  name -> where its head is, as FUNCTION finds it
    scopes     numbers for the scopes in which names hold
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(found.end() for found in re.finditer(r"\n", text))]
        self.files = dict(re.findall(r"\.file\s+(\d+)\s+\"([^\"]*)\"", text))
        self.functions = {found[2]: found for found in FUNCTION.finditer(text)}
        self.scopes = count(1)

    def line(self, at: int) -> int:
        return bisect_right(self.starts, at)


def _require_target(module: _Module) -> None:
    target = re.search(r"\.target\s+(\w+)", module.text)
    if target is None:
        raise PtxError("the text isn't PTX: it has no line with .target")
    sm = re.fullmatch(r"sm_(\d+)[af]?", target[1])
    if not sm or int(sm[1]) < OLDEST:
        why = f"sm_{OLDEST} or newer: older GPUs run the lanes of a warp in lockstep"
        line = module.line(target.start())
        raise PtxError(f"line {line} of the PTX: .target is {target[1]}; it must be {why}")
    size = re.search(r"\.address_size\s+(\d+)", module.text)
    if size and size[1] != "64":
        line = module.line(size.start())
        raise PtxError(f"line {line} of the PTX: .address_size is {size[1]}; it must be 64")


def _size(type_: str, line: int) -> int:
    try:
        return size_of(type_)
    except ValueError as error:
        raise PtxError(f"line {line} of the PTX: {error}") from None


class _Body:
    """Reads a kernel's body, or a function's where it is called, as if it stood there. Names that
    are declared in a scope, or in a function, get a suffix."""

    def __init__(
        self,
        kernel: Kernel,
        module: _Module,
        start: int,
        names: Mapping[str, str] | None = None,
        callers: tuple[str, ...] = (),
    ) -> None:
        """names    of a function: its parameters and results -> what the caller hands over
        callers  the functions that are being called, outermost first"""
        self.kernel, self.module, self.start, self.callers = kernel, module, start, callers
        self.names = ChainMap(dict(names or {}))
        self.suffixes = [f".{next(module.scopes)}" if callers else ""]
        self.source: tuple[str, int] | None = None
        self.caller: tuple[str, int] | None = None

    def read(self) -> None:
        """Add its instructions to the kernel's."""
        for kind, piece, at in self._pieces():
            line = self.module.line(at)
            if kind == "brace" and piece == "{":
                self.names = self.names.new_child()
                self.suffixes.append(f".{next(self.module.scopes)}")
            elif kind == "brace":
                self.names = self.names.parents
                self.suffixes.pop()
            elif kind == "label":
                self._mark(piece, line)
            elif kind == "place":
                self._note_source(piece.split())
            elif piece.startswith(".reg"):
                self._declare_registers(piece, line)
            elif piece.startswith((".local", ".param", ".shared")):
                self._declare_variable(piece, line, at)
            elif re.match(r"(@\S+ )?call\b", piece):
                self._call(piece, line)
            elif not piece.startswith("."):
                self._add(piece, line)
        if self.callers:
            self.kernel.labels[RETURN + self.suffixes[0]] = len(self.kernel.instructions)

    def _pieces(self) -> Iterator[tuple[str, str, int]]:
        """(kind, text, where it begins) of each piece, up to the brace that ends the body."""
        at, depth = self.start, 1
        while True:
            found = PIECE.match(self.module.text, at)
            if found is None:
                rest = self.module.text[at:].strip()
                what = f"what is {rest[:40]!r}?" if rest else "the text ends within the kernel"
                raise PtxError(f"line {self.module.line(at)} of the PTX: {what}")
            kind, at = found.lastgroup, found.end()
            piece = found[kind]
            depth += {"{": 1, "}": -1}.get(piece, 0)
            if not depth:
                return
            begin = found.start(kind) + len(piece) - len(piece.lstrip())
            yield kind, " ".join(piece.split()), begin

    def _note_source(self, words: list[str]) -> None:
        """.loc 1 17 5: line 17 of file 1, in column 5; line 0 means none. In a function that was
        inlined, the line that called it follows, behind inlined_at."""
        if words[0] == ".loc":
            self.source = self._place(words[1:3])
            inlined = words.index("inlined_at") if "inlined_at" in words else len(words)
            self.caller = self._place(words[inlined + 1 : inlined + 3])

    def _place(self, words: list[str]) -> tuple[str, int] | None:
        """A file's number and a line, as a place; nothing, or line 0, is none."""
        if not words or words[1] == "0":
            return None
        return self.module.files.get(words[0], "?"), int(words[1])

    def _declare_variable(self, text: str, line: int, at: int) -> None:
        suffix, count = self.suffixes[-1], len(self.kernel.variables)
        if text.startswith(".shared") and suffix:  # one for all calls of a function
            suffix = f".{at}"
        name = self.kernel.declare(text, line, suffix)
        if not suffix and len(self.kernel.variables) == count:
            raise PtxError(f"line {line} of the PTX: {name} is declared twice: {text}")
        self._named(name, suffix)

    def _mark(self, label: str, line: int) -> None:
        name = label + self.suffixes[-1]
        if name in self.kernel.labels:
            raise PtxError(f"line {line} of the PTX: {label}: is in the kernel twice")
        self.kernel.labels[name] = len(self.kernel.instructions)

    def _declare_registers(self, text: str, line: int) -> None:
        found = re.match(r"\.reg\s*\.(\w+)\s+(.*)", text)
        if found is None:
            raise PtxError(f"line {line} of the PTX: what registers are {text!r}?")
        _size(found[1], line)
        for name, items in re.findall(r"([\w$%]+)(?:<(\d+)>)?", found[2]):
            for number in range(int(items)) if items else [""]:
                here = self._named(f"{name}{number}", self.suffixes[-1])
                if here in self.kernel.registers:
                    what = f"{name}{number} is declared twice: {text}"
                    raise PtxError(f"line {line} of the PTX: {what}")
                self.kernel.registers[here] = found[1]

    def _call(self, text: str, line: int) -> None:
        """The function's body follows the call. Its `ret` is a branch to what comes after it."""
        found = CALL.fullmatch(text)
        if found is None:  # through a pointer, or under a guard; refused when it is reached
            self._append("", ("call", "unknown"), (text,), text, line)
            return
        name, function = found[2], self.module.functions.get(found[2])
        given = list(map(self._renamed, [*_names_in(found[1]), *_names_in(found[3])]))
        if function is None:  # one of cuda.fp16, or refused when it is reached
            self._append("", ("call", "unknown"), (name, *given), text, line)
            return
        own = [*_names_in(function[1]), *_names_in(function[3])]
        if ".reg" in f"{function[1]} {function[3]}":
            why = "takes or gives values in registers, which no compiler makes"
            raise PtxError(f"line {line} of the PTX: {name} {why}: {text}")
        if name in self.callers or len(own) != len(given):
            why = "calls itself" if name in self.callers else f"takes and gives {len(own)} values"
            raise PtxError(f"line {line} of the PTX: {name} {why}: {text}")
        self._append("", ("call",), (), text, line)
        names = dict(zip(own, given, strict=True))
        _Body(self.kernel, self.module, function.end(), names, (*self.callers, name)).read()

    def _add(self, text: str, line: int) -> None:
        found = STATEMENT.match(text)
        if found is None:
            raise PtxError(f"line {line} of the PTX: what instruction is {text!r}?")
        guard, name, rest = found.groups()
        operands = tuple(map(str.strip, OPERAND.findall(self._renamed(rest))))
        words = tuple(name.split("."))
        if words[0] == "bra":  # the innermost label of this name; it may follow
            operands = tuple(rest.strip() + suffix for suffix in reversed(self.suffixes))
        elif words[0] == "ret" and self.callers:
            words, operands = ("bra",), (RETURN + self.suffixes[0],)
        self._append(self._renamed(guard or ""), words, operands, text, line)

    def _append(
        self, guard: str, words: tuple[str, ...], operands: tuple[str, ...], text: str, line: int
    ) -> None:
        number, places = len(self.kernel.instructions), (self.source, self.caller)
        new = Instruction(number, guard, words, operands, text, line, *places)
        self.kernel.instructions.append(new)

    def _named(self, name: str, suffix: str) -> str:
        """What a name that is declared here stands for, from here on."""
        if suffix:
            self.names[name] = name + suffix
        return name + suffix

    def _renamed(self, operand: str) -> str:
        if not any(self.names.maps):  # no name of a kernel's outermost scope has a suffix
            return operand
        return NAME.sub(lambda found: self.names.get(found[0], found[0]), operand)


def _names_in(text: str | None) -> list[str]:
    """The names in a list of parameters, or of what a call hands over."""
    items = filter(None, map(str.strip, (text or "").split(",")))
    return [item.split()[-1].partition("[")[0] for item in items]
