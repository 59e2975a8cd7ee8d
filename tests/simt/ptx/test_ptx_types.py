"""What an instruction takes, beside what NVIDIA's assembler says: ptxas, which Triton brings."""

import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from simt.ptx import PtxError, parse
from simt.ptx.types import require_type
from tests.simt.absent import ptxas

# A register of each type, and constants.
REGISTERS = {
    **{"pred": "%p", "b16": "%h", "u16": "%hu", "s16": "%hs", "f16": "%hf"},
    **{"b32": "%r", "u32": "%ru", "s32": "%rs", "f32": "%f"},
    **{"b64": "%rd", "u64": "%rdu", "s64": "%rds", "f64": "%fd"},
}
OTHERS = ("7", "-1", "1.5", "0f3F800000", "0d3FF0000000000000", "%undeclared", "%tid.x", "s")
HOLDS = {"8": "%h", "16": "%h", "32": "%r", "64": "%rd"}  # any type of so many bits
HOLDS |= {"f32": "%f", "f64": "%fd", "pred": "%p", "f16x2": "%r", "bf16x2": "%r"}
TYPES = [f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)]
TYPES += ["pred", "f16", "bf16", "f16x2", "bf16x2", "f32", "f64"]
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry kernel(.param .u64 a)\n{\n"
HEAD += "".join(f".reg .{type_} {name}<9>;\n" for type_, name in REGISTERS.items())
HEAD += ".shared .align 16 .b8 s[256];\n"
# What ptxas says of a type, of a name, or of what can't stand there.
OF_TYPES = ("Arguments mismatch", "Unexpected instruction types", "Predicate", "Special register")
OF_TYPES += ("must be register", "Unknown symbol", "Illegal to use")
# Where we let pass what ptxas refuses: %tid.x in 64 bits, a constant as the predicate of a setp of
# bfloat16, a float's register for redux, and some conversions to pairs, which can't be run.
LET_PASS = (
    r"(mov|cvta)\S* \S+ %tid\.x|setp\.ne\.and\.bf16|redux\.sync\.and\.b32|cvt\.(\w+\.)?b?f16x2"
)
# And the other way round: ptxas takes a predicate as the second number here.
STRICTER = r"setp\.(lt|eq)\.bf16x2 .* %p3;"
# The names of instructions -> their operands: t is a register of the type {t}, w a wider one, a an
# address, n a constant; p and r are registers of 1 and 32 bits.
INSTRUCTIONS = {
    "add.{t} sub.{t} min.{t} max.{t} mul.{t} mul.lo.{t} mul.hi.{t} rem.{t} div.{t} div.rn.{t} "
    "copysign.{t} and.{t} xor.{t} add.cc.{t} addc.{t} mul24.lo.{t}": "ttt",
    "mad.lo.{t} mad.hi.{t} mad.rn.{t} fma.rn.{t} sad.{t} mad24.lo.{t}": "tttt",
    "mul.wide.{t}": "wtt",
    "mad.wide.{t}": "wttw",
    "abs.{t} neg.{t} sqrt.rn.{t} rcp.rn.{t} rsqrt.approx.{t} sin.approx.{t} lg2.approx.{t} "
    "ex2.approx.{t} tanh.approx.{t} not.{t} cnot.{t} brev.{t} mov.{t} cvta.shared.{t}": "tt",
    "shl.{t} shr.{t}": "ttr",
    "popc.{t} clz.{t} bfind.{t}": "rt",
    "bfe.{t}": "ttrr",
    "bfi.{t}": "tttrr",
    "lop3.{t}": "ttttn",
    "prmt.{t} shf.l.wrap.{t}": "tttr",
    "dp4a.{t}.u32 dp4a.u32.{t}": "rrrr",
    "setp.lt.{t} setp.eq.{t}": "ptt",
    "setp.ne.and.{t}": "pttp",
    "testp.finite.{t}": "pt",
    "selp.{t}": "tttp",
    "ld.global.{t} ldu.global.{t}": "ta",
    "st.shared.{t}": "at",
    "atom.global.add.{t} atom.global.exch.{t} atom.global.min.{t} atom.global.or.{t}": "tat",
    "atom.global.cas.{t}": "tatt",
    "red.global.add.{t} red.global.max.{t}": "at",
    "shfl.sync.idx.{t}": "ttrrr",
    "vote.sync.any.{t} vote.sync.ballot.{t}": "tpr",
    "match.any.sync.{t}": "rtr",
    "redux.sync.add.{t} redux.sync.and.{t}": "ttr",
    "activemask.{t}": "t",
}
INSTRUCTIONS = {name: how for names, how in INSTRUCTIONS.items() for name in names.split()}


def holder(type_: str) -> str:
    return HOLDS.get(type_) or HOLDS[re.sub(r"\D", "", type_)]


def operand(letter: str, type_: str, number: int) -> str:
    wide = HOLDS.get(str(2 * int(re.sub("[^0-9]", "", type_) or 32)))
    names = {"t": holder(type_), "w": wide, "p": "%p", "r": "%r", "a": "[%rd"}
    return "0x1F" if letter == "n" else f"{names[letter]}{number}" + "]" * (letter == "a")


def statements() -> Iterator[str]:
    """Each instruction in each type, then with each of its operands replaced by each other."""
    for (name, how), type_ in product(INSTRUCTIONS.items(), TYPES):
        if "w" in how and type_[1:] not in ("16", "32"):
            continue
        right = [operand(letter, type_, number) for number, letter in enumerate(how, 1)]
        instruction = name.format(t=type_)
        yield f"{instruction} {', '.join(right)};"
        for at, other in product(range(len(right)), (*REGISTERS.values(), *OTHERS)):
            if other in REGISTERS.values() and how[at] != "n":
                new = f"[{other}3]" if how[at] == "a" else f"{other}3"
            elif at and how[at] not in "an":
                new = other
            else:  # a constant can't take a result
                continue
            yield f"{instruction} {', '.join([*right[:at], new, *right[at + 1 :]])};"
    for target, source in product(TYPES, TYPES):
        for at, other in product(range(2), REGISTERS.values()):
            right = [f"{holder(target)}1", f"{holder(source)}2"]
            right[at] = f"{other}3"
            for rounding in ("", ".rn", ".rzi"):
                yield f"cvt{rounding}.{target}.{source} {', '.join(right)};"


def refused_by_ptxas(lines: list[str], folder: Path) -> dict[int, str]:
    """Number of a line -> why it is refused."""
    text = folder / "text.ptx"
    text.write_text(HEAD + "\n".join(lines) + "\nret;\n}\n")
    command = [ptxas(), "-arch", "sm_90", text, "-o", folder / "cubin"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    found = re.findall(r"line (\d+); error\s*: (.*)", said)
    assert found, said
    assert "Parsing error" not in said, said
    return {int(number) - HEAD.count("\n") - 1: why for number, why in reversed(found)}


@pytest.mark.needs("ptxas")
def test_registers_are_refused_exactly_where_ptxas_refuses_them(tmp_path: Path) -> None:
    lines = list(dict.fromkeys(statements()))
    theirs = refused_by_ptxas(lines, tmp_path)
    kernel = parse(HEAD + "\n".join(lines) + "\nret;\n}\n")
    wrong = []
    for number, line in enumerate(lines):
        why = theirs.get(number, "")
        try:
            require_type(kernel, kernel.instructions[number])
        except PtxError as error:
            if not (why or re.match(STRICTER, line)):
                wrong.append(f"ptxas takes it: {error}")
        else:
            if any(words in why for words in OF_TYPES) and not re.match(LET_PASS, line):
                wrong.append(f"we take it: {line} {why}")
    assert len(lines) > 90_000
    assert not wrong, "\n".join(wrong[:20])
