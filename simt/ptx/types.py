"""Which registers and constants an instruction takes: what ptxas, NVIDIA's assembler, refuses for
its types or names is refused here.

Source: NVIDIA, "Parallel Thread Execution ISA", section "Type Information for Instructions and
Operands". The test of this table asks ptxas about nearly every row.
"""

import re
from functools import cache
from itertools import chain, repeat

from simt.ptx.numbers import DTYPES, WIDER, size_of
from simt.ptx.parsing import Instruction, Kernel, PtxError

INTEGERS = "u16 u32 u64 s16 s32 s64"
BITS = "b16 b32 b64"
HALVES = "f16 f16x2 bf16 bf16x2"
FLOATS = "f32 f64"
IN_MEMORY = f"b8 u8 s8 {BITS} {INTEGERS} {FLOATS}"
# Instructions, their operands, and the types they come in. Of an operand, t is the type at the end
# of the instruction's name, s the one before, d the first; wide has twice the bits of t; - is an
# address. Some instructions of a row may have fewer operands. A name with a word, such as mul.wide,
# is for instructions that have the word.
TABLE = (
    ("add sub min max", "t t t", f"{INTEGERS} {HALVES} {FLOATS}"),
    ("mul.lo mul.hi mad.lo mad.hi addc subc madc rem sad", "t t t t", INTEGERS),
    ("mul.wide mad.wide", "wide t t wide", "u16 u32 s16 s32"),
    ("mul24 mad24", "t t t t", "u32 s32"),
    ("dp4a dp2a", "u32 s t u32", "u32 s32"),
    ("mul fma", "t t t t", f"{HALVES} {FLOATS}"),
    ("mad copysign sqrt rcp rsqrt", "t t t t", FLOATS),
    ("div", "t t t", f"{INTEGERS} {FLOATS}"),
    ("abs neg", "t t", f"s16 s32 s64 {HALVES} {FLOATS}"),
    ("sin cos lg2", "t t", "f32"),
    ("ex2 tanh", "t t", f"{HALVES} f32"),
    ("and or xor not", "t t t", f"pred {BITS}"),
    ("cnot", "t t", BITS),
    ("shl", "t t u32", BITS),
    ("shr", "t t u32", f"{BITS} {INTEGERS}"),
    ("shf", "t t t u32", "b32"),
    ("popc clz", "u32 t", "b32 b64"),
    ("brev", "t t", "b32 b64"),
    ("bfind", "u32 t", "u32 u64 s32 s64"),
    ("bfe", "t t u32 u32", "u32 u64 s32 s64"),
    ("bfi", "t t t u32 u32", "b32 b64"),
    ("lop3 prmt", "t t t t", "b32"),
    ("setp.eq setp.ne", "pred t t pred", f"{BITS} {INTEGERS} {HALVES} {FLOATS}"),
    ("setp", "pred t t pred", f"{INTEGERS} {HALVES} {FLOATS}"),
    ("testp", "pred t", FLOATS),
    ("selp", "t t t pred", f"{BITS} {INTEGERS} {FLOATS}"),
    ("mov", "t t", f"pred {BITS} {INTEGERS} {FLOATS}"),
    ("cvta", "t t", "u32 u64"),
    ("cvt", "s t", f"u8 s8 {INTEGERS} f16 bf16 {FLOATS}"),
    ("cvt.f16x2 cvt.bf16x2 cvt.e4m3x2 cvt.e5m2x2", "s t t", "f16x2 bf16x2 e4m3x2 e5m2x2 f32"),
    ("ld ldu", "t -", IN_MEMORY),
    ("st", "- t", IN_MEMORY),
    ("atom.cas", "t - t t", BITS),
    ("atom.exch atom.and atom.or atom.xor", "t - t", "b32 b64"),
    ("atom.min atom.max", "t - t", "u32 u64 s32 s64"),
    ("atom.inc atom.dec", "t - t", "u32"),
    ("atom.add", "t - t", f"u32 u64 s32 {HALVES} {FLOATS}"),
    ("shfl", "t t b32 b32 u32", "b32"),
    ("vote.ballot", "t pred u32", "b32"),
    ("vote", "t pred u32", "pred"),
    ("match", "u32 t u32", "b32 b64"),
    ("redux.and redux.or redux.xor", "t t u32", "b32"),
    ("redux", "t t u32", "u32 s32"),
    ("nanosleep", "t", "u32"),
    ("activemask", "t", "b32"),
    ("mma", "d b32 b32 t", "f16 f32"),
    ("ldmatrix", "b32 -", "b16"),
    ("stmatrix", "- b32", "b16"),
    ("bar.red barrier.red", "t u32 pred", "pred u32"),
)


FORMS = {name: (row[1].split(), row[2].split()) for row in TABLE for name in row[0].split()}
# red is atom without a result.
ATOMICS = {name: form for name, form in FORMS.items() if name.startswith("atom")}
FORMS |= {f"red{name[4:]}": (form[0][1:], form[1]) for name, form in ATOMICS.items()}
ADDRESS = "-"
SPECIAL = re.compile(
    r"%(n?(tid|ctaid|clusterid)\.[xyz]|n?warpid|laneid|lanemask_\w+|n?smid|gridid|clock\w*|pm\d\w*"
    r"|globaltimer\w*|envreg\d+|\w+_smem_\w+|\w*cluster_\w+(\.[xyz])?|current_graph_exec)"
)
IDENTIFIER = re.compile(r"(?<![\w$.%])(?:[A-Za-z$%][\w$.%]*|_[\w$.%]+)")
CONSTANT = re.compile(r"0[fF][0-9A-Fa-f]{8}|0[dD][0-9A-Fa-f]{16}|-?\d+(\.\d*)?(e[+-]?\d+)?|-?\d\w*")


def require_types(kernel: Kernel) -> None:
    """Raise PtxError for the first instruction that doesn't come in its type, has a register or a
    constant of another type than it takes, or a name that isn't declared."""
    for one in kernel.instructions:
        require_type(kernel, one)


def require_type(kernel: Kernel, one: Instruction) -> None:
    """The same for one instruction."""
    guard = one.guard.lstrip("!")
    if guard and kernel.registers.get(guard) != "pred":
        raise _refused(one, f"the guard {guard} isn't a .pred register")
    if one.opcode == "bra":
        if kernel.labels.keys().isdisjoint(one.operands):
            raise _refused(one, f"{one.text.split()[-1]} isn't a label of the kernel")
        return
    wanted = types_of_operands(one.words)
    if wanted is None:
        raise _refused(one, f"PTX has no {'.'.join(one.words)}")
    registers = tuple(map(kernel.registers.get, one.operands))
    for number, type_ in _unclear(one.words, registers):
        _require_parts(kernel, one, one.operands[number], type_)


@cache
def _unclear(words: tuple[str, ...], registers: tuple[str | None, ...]) -> list[tuple[int, str]]:
    """The numbers of the operands that aren't registers of their types, given what registers they
    are; and these types."""
    pairs = enumerate(zip(registers, chain(types_of_operands(words), repeat("")), strict=False))
    may_be_wider = _may_be_wider(words)
    return [
        (number, wanted)
        for number, (register, wanted) in pairs
        if register is None or not _agree(register, wanted, may_be_wider)
    ]


@cache
def _may_be_wider(words: tuple[str, ...]) -> bool:
    """Whether registers may be wider than the type."""
    is_plain = not any(word.startswith("bf") or word.endswith("x2") for word in words)
    return words[0] in ("ld", "ldu", "st", "cvt") and is_plain


@cache
def types_of_operands(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The types of the operands of an instruction, by the words of its name; empty: it isn't in the
    table. None: it doesn't come in its type."""
    opcode, types = words[0], [word for word in words if word in DTYPES]
    longer = [f"{opcode}.{word}" for word in words[:-1] if f"{opcode}.{word}" in FORMS]
    operands, allowed = FORMS.get(longer[0] if longer else opcode, ((), ()))
    num_types = 2 if "s" in operands else 1
    if not operands or len(types) != (4 if opcode == "mma" else num_types):
        return ()
    if not set(types[-num_types:]) <= set(allowed):
        return None
    names = {"t": types[-1], "s": types[-2:][0], "d": types[0], "wide": WIDER.get(types[-1], "")}
    wanted = [names.get(operand, operand) for operand in operands]
    return tuple("f16x2" if opcode == "mma" and type_ == "f16" else type_ for type_ in wanted)


@cache
def _agree(register: str, wanted: str, may_be_wider: bool) -> bool:
    """Whether a register of this type may stand where a type is wanted; ADDRESS, or "" for any."""
    has, takes = _kind(register), _kind(wanted)
    if wanted in ("", ADDRESS):
        return not wanted or has in ("bits", "integer")
    if "pred" in (has, takes):
        return has == takes
    size, least = size_of(register), size_of(wanted)
    if size == least and (has == takes or "bits" in (has, takes)):
        return True
    if not may_be_wider or size < least:
        return False
    if takes == "integer":
        return has != "float"
    return "bits" in (has, takes)


@cache
def _kind(type_: str) -> str:
    """Types of one kind differ in their size alone."""
    letters = re.sub(r"\d", "", type_)
    return {"b": "bits", "u": "integer", "s": "integer", "f": "float"}.get(letters, letters)


def _require_parts(kernel: Kernel, one: Instruction, operand: str, wanted: str) -> None:
    """Check an operand that isn't one register: {%r1, %r2}, [%rd1+4], %p1|%p2, !%p1, a constant."""
    if operand.startswith("["):
        wanted = ADDRESS
    elif operand.startswith("{") and one.opcode == "mov" and wanted:
        wanted = f"b{8 * size_of(wanted) // len(operand.split(','))}"
        if wanted not in DTYPES:
            raise one.unknown()
    elif operand.startswith("{") and one.opcode in ("ld", "ldu", "st"):
        wanted = f"b{8 * size_of(wanted)}" if wanted else ""  # ptxas looks at their size alone
    for number, part in enumerate(operand.split("|")):
        for name in IDENTIFIER.findall(part):
            _require_name(kernel, one, name, "pred" if number else wanted)
    if wanted and CONSTANT.fullmatch(operand) and not _takes_constant(operand, wanted):
        raise _refused(one, f"{operand} is a constant where {_asked(one, wanted)}")


def _takes_constant(text: str, wanted: str) -> bool:
    is_single, is_double = text[:2] in ("0f", "0F"), text[:2] in ("0d", "0D")
    is_double |= re.search(r"^-?\d+[.e]", text) is not None
    if is_single or is_double:
        return wanted in ("f32", "f64", "b32" if is_single else "b64")
    return _kind(wanted) in ("bits", "integer", "pred")


def _require_name(kernel: Kernel, one: Instruction, name: str, wanted: str) -> None:
    register = kernel.registers.get(name)
    if register:
        if not _agree(register, wanted, _may_be_wider(one.words)):
            raise _refused(one, f"{name} is a .{register} register where {_asked(one, wanted)}")
    elif name in kernel.variables or name in kernel.arrays or SPECIAL.fullmatch(name):
        takes_it = one.opcode in ("mov", "cvt", "cvta") and _kind(wanted) in ("bits", "integer")
        if wanted not in ("", ADDRESS) and not takes_it:
            raise _refused(one, f"{name} isn't a register: move it to one first")
    elif name.startswith("%") or (wanted and _must_be_declared(one, name)):
        raise _refused(one, f"{name} isn't declared")


def _must_be_declared(one: Instruction, name: str) -> bool:
    """What mov reads may also be a function, which the kernel doesn't declare."""
    return name != "WARP_SZ" and (one.opcode != "mov" or name in one.operands[0])


def _asked(one: Instruction, wanted: str) -> str:
    """What an instruction takes: add.f32 takes .f32 or .b32."""
    name = ".".join(one.words)
    if wanted == ADDRESS:
        return f"{name} takes an address: .u64, .s64 or .b64"
    if wanted == "pred":
        return f"{name} takes .pred"
    bits = 8 * size_of(wanted)
    types = {"bits": f"any register of {bits} bits", "integer": f".s{bits}, .u{bits} or .b{bits}"}
    takes = types.get(_kind(wanted), f".{wanted} or .b{bits}")
    return f"{name} takes {takes}{', or a wider one' * _may_be_wider(one.words)}"


def _refused(one: Instruction, why: str) -> PtxError:
    return PtxError(f"{why}: {one}")
