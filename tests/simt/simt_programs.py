"""Random kernels, to hold the simulator against plain Python, one thread at a time.

A program is the text of a device function and of a kernel. They branch, loop, leave loops and
return, each lane in its own way, and write what they compute into a row of `out`.
"""

import random
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np

from tests.simt.helpers import imported

VARIABLES = ("a", "b", "c")
NUM_THREADS = 40  # a full warp and a part of one
ROW = 8
DEVICE_FUNCTIONS = """
from numba import cuda
@cuda.jit(device=True)
def quotient_and_rest(x, y):
    return x // y, x % y
@cuda.jit(device=True)
def helper(a, b):
    c, t = a - b, a"""
KERNEL = """
@cuda.jit
def kernel(out, table):
    t = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = table[t % 3]"""


class Writer:
    """Writes one random program; the seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0
        self.counters = 0
        self.in_kernel = False

    def number(self, depth: int = 2) -> str:
        pick = self.random.choice
        if depth == 0:
            return pick([*VARIABLES, "t", str(self.random.randint(-9, 9))])
        left, right = self.number(depth - 1), self.number(depth - 1)
        divisor = pick(["3", "-4", "7"])
        forms = [
            f"({left} {pick('+-*&|^')} {right})",
            f"({left} // {divisor})",
            f"({left} % {divisor})",
            f"(-{left})",
            f"({left} if {self.condition(depth - 1)} else {right})",
            f"min({left}, {right})",
            f"abs({left})",
            f"(({left} & 15) << 2)",
        ]
        if self.in_kernel:
            forms += [f"helper({left}, {right})", "row[abs(a) % 4]", "(5, 9, -3)[a % 3]"]
        return pick(forms)

    def condition(self, depth: int = 1) -> str:
        pick = self.random.choice
        left, right = self.number(0), self.number(0)
        simple = f"{left} {pick(['<', '<=', '>', '>=', '==', '!='])} {right}"
        if depth == 0:
            return simple
        other = self.condition(depth - 1)
        chain = f"{left} < {self.number(0)} <= {right}"
        return pick(
            [simple, f"({simple} and {other})", f"({simple} or {other})", f"not ({other})", chain]
        )

    def add(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def block(self, indent: int, depth: int, size: int) -> None:
        for _ in range(self.random.randint(1, size)):
            self.statement(indent, depth)

    def statement(self, indent: int, depth: int) -> None:
        pick = self.random.choice
        name = pick(VARIABLES)
        kinds = ["assign", "augment", "pair", "write"]
        if depth:
            kinds += ["if", "if", "for", "while"]
        if self.loops:
            kinds += ["break", "continue"]
        if self.random.random() < 0.1:
            kinds += ["return"]
        match pick(kinds):
            case "assign":
                self.add(indent, f"{name} = {self.number()} % 97")
            case "augment":
                number = self.number(1)
                change = [f"{op}= {number}" for op in "+-*&|^"]
                change += ["//= 3", "%= -7", f"<<= {number} & 7", f">>= {number} & 7"]
                self.add(indent, f"{name} {pick(change)}")
                self.add(indent, f"{name} %= 97")
            case "pair":
                pairs = [f"b, {self.number(1)} % 97", f"divmod({self.number(1)}, 9)"]
                pairs += [f"quotient_and_rest({self.number(1)}, 5)"] * self.in_kernel
                self.add(indent, f"a, b = {pick(pairs)}")
            case "write" if self.in_kernel:
                where = f"out[t, {self.number(1)} % {ROW}]"
                self.add(indent, f"{where} {pick(['=', '+='])} {self.number(1)} % 97")
            case "if":
                self.branch(indent, depth)
            case "for":
                self.for_loop(indent, depth)
            case "while":
                self.while_loop(indent, depth)
            case "break" | "continue" as word:
                self.add(indent, f"if {self.condition()}:")
                self.add(indent + 1, word)
            case "return":
                self.add(indent, f"if {self.condition()}:")
                self.add(
                    indent + 1, "return" if self.in_kernel else f"return {self.number(1)} % 97"
                )
            case _:
                self.add(indent, f"{name} = {self.number(1)} % 97")

    def branch(self, indent: int, depth: int) -> None:
        self.add(indent, f"if {self.condition()}:")
        self.block(indent + 1, depth - 1, 3)
        if self.random.random() < 0.4:
            self.add(indent, f"elif {self.condition()}:")
            self.block(indent + 1, depth - 1, 2)
        if self.random.random() < 0.5:
            self.add(indent, "else:")
            self.block(indent + 1, depth - 1, 3)

    def for_loop(self, indent: int, depth: int) -> None:
        pick, number = self.random.choice, lambda: f"({self.number(0)}) % 6"
        bounds = pick([number(), f"{number()}, {number()} + 3", f"{number()} + 4, {number()}, -2"])
        step = f"{number()}, {number()}, ({self.number(0)}) // 9 * 2 + 1"
        over = pick([f"range({bounds})", f"range({step})", "(5, 9, 2)"])
        self.counters += 1
        counter = f"i{self.counters}"
        self.add(indent, f"{counter} = 7")
        self.add(indent, f"for {counter} in {over}:")
        self.add(indent + 1, f"c = (c + {counter}) % 97")
        self.inside_loop(indent, depth)
        self.add(indent, f"a = (a + {counter}) % 97")

    def while_loop(self, indent: int, depth: int) -> None:
        self.counters += 1
        name = f"w{self.counters}"
        self.add(indent, f"{name} = ({self.number(0)}) % 5")
        self.add(indent, f"while {name} > 0 and ({self.condition(0)}):")
        self.add(indent + 1, f"{name} -= 1")
        self.inside_loop(indent, depth)

    def inside_loop(self, indent: int, depth: int) -> None:
        self.loops += 1
        self.block(indent + 1, depth - 1, 3)
        self.loops -= 1

    def program(self) -> str:
        self.add(0, DEVICE_FUNCTIONS)
        self.block(1, 2, 3)
        self.add(1, f"return {self.number(1)} % 97")
        self.in_kernel = True
        self.add(0, KERNEL)
        for name in VARIABLES:
            self.add(1, f"{name} = {self.random.randint(1, 9)} * t % {self.random.randint(2, 9)}")
        self.block(1, 3, 6)
        for i, name in enumerate(VARIABLES):
            self.add(1, f"out[t, {i}] += {name}")
        return "\n".join(self.lines) + "\n"


def write_program(seed: int, folder: Path) -> ModuleType:
    return imported(folder / f"program_{seed}.py", Writer(seed).program())


def arguments(num_threads: int = NUM_THREADS) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((num_threads, ROW), np.int64)
    return out, np.arange(12).reshape(3, 4) * 7 % 11


def run_thread_by_thread(
    module: ModuleType, num_blocks: int = 1, num_threads: int = NUM_THREADS
) -> np.ndarray:
    """What plain Python makes of the program: each thread alone, one after another.

    num_threads  of a thread block
    """
    out, table = arguments(num_blocks * num_threads)
    rows, table = out.astype(object), table.tolist()  # of integers of Python
    cuda = SimpleNamespace(
        threadIdx=SimpleNamespace(x=0),
        blockIdx=SimpleNamespace(x=0),
        blockDim=SimpleNamespace(x=num_threads),
    )
    names = {"cuda": cuda}
    for name in ("helper", "quotient_and_rest"):
        names[name] = FunctionType(getattr(module, name).py_func.__code__, names)
    kernel = FunctionType(module.kernel.py_func.__code__, names)
    for thread in range(num_blocks * num_threads):
        cuda.blockIdx.x, cuda.threadIdx.x = divmod(thread, num_threads)
        kernel(rows, table)
    return rows.astype(out.dtype)
