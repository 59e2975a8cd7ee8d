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
        self.pick = self.random.choice
        self.loops = 0  # around the statement
        self.counters = 0
        self.in_kernel = False

    def number(self, depth: int = 2) -> str:
        if depth == 0:
            return self.pick([*VARIABLES, "t", str(self.random.randint(-9, 9))])
        left, right = self.number(depth - 1), self.number(depth - 1)
        forms = [
            f"({left} {self.pick('+-*&|^')} {right})",
            f"({left} {self.pick(('//', '%'))} {self.pick((3, -4, 7))})",
            f"(-{left})",
            f"({left} if {self.condition(depth - 1)} else {right})",
            f"min({left}, {right})",
            f"abs({left})",
            f"(({left} & 15) << 2)",
        ]
        if self.in_kernel:
            forms += [f"helper({left}, {right})", "row[abs(a) % 4]", "(5, 9, -3)[a % 3]"]
        return self.pick(forms)

    def condition(self, depth: int = 1) -> str:
        left, right = self.number(0), self.number(0)
        simple = f"{left} {self.pick(['<', '<=', '>', '>=', '==', '!='])} {right}"
        if depth == 0:
            return simple
        other, chain = self.condition(depth - 1), f"{left} < {self.number(0)} <= {right}"
        joined = f"({simple} {self.pick(('and', 'or'))} {other})"
        return self.pick([simple, joined, f"not ({other})", chain])

    def block(self, depth: int, size: int) -> list[str]:
        """Up to this many statements, as the lines inside another statement."""
        count = self.random.randint(1, size)
        return [f"    {line}" for _ in range(count) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        name, number = self.pick(VARIABLES), self.number(1)
        kinds = ["assign", "augment"] + ["write"] * self.in_kernel
        kinds += ["if", "if", "for", "while"] * (depth > 0)
        kinds += ["break", "continue"] * (self.loops > 0)
        if self.random.random() < 0.1:
            kinds += ["return"]
        match self.pick(kinds):
            case "augment":
                changes = [f"{op}= {number}" for op in "+-*&|^"]
                changes += ["//= 3", "%= -7", f"<<= {number} & 7", f">>= {number} & 7"]
                return [f"{name} {self.pick(changes)}", f"{name} %= 97"]
            case "write":
                return [f"out[t, {number} % {ROW}] {self.pick(('=', '+='))} {self.number(1)} % 97"]
            case "if":
                return self.branch(depth)
            case "for" | "while" as word:
                return self.loop(word, depth)
            case "break" | "continue" | "return" as word:
                result = f" {number} % 97" if word == "return" and not self.in_kernel else ""
                return [f"if {self.condition()}:", f"    {word}{result}"]
        return [f"{name} = {self.number()} % 97"]

    def branch(self, depth: int) -> list[str]:
        lines = [f"if {self.condition()}:", *self.block(depth - 1, 3)]
        if self.random.random() < 0.4:
            lines += [f"elif {self.condition()}:", *self.block(depth - 1, 2)]
        if self.random.random() < 0.5:
            lines += ["else:", *self.block(depth - 1, 3)]
        return lines

    def loop(self, word: str, depth: int) -> list[str]:
        number = [f"({self.number(0)}) % 6" for _ in range(2)]
        step = self.pick(("1", "-2", f"({self.number(0)}) // 9 * 2 + 1"))
        over = self.pick(
            (f"range({number[0]})", f"range({', '.join([*number, step])})", "(5, 9, 2)")
        )
        self.counters += 1
        self.loops += 1
        i, body = f"i{self.counters}", self.block(depth - 1, 3)
        self.loops -= 1
        if word == "while":
            head = f"while {i} > 0 and ({self.condition(0)}):"
            return [f"{i} = {number[0]}", head, f"    {i} -= 1", *body]
        first = f"    c = (c + {i}) % 97"
        return [f"{i} = 7", f"for {i} in {over}:", first, *body, f"a = (a + {i}) % 97"]

    def program(self) -> str:
        lines = [DEVICE_FUNCTIONS, *self.block(2, 3), f"    return {self.number(1)} % 97"]
        self.in_kernel = True
        start = [(name, *(self.random.randint(2, 9) for _ in range(2))) for name in VARIABLES]
        lines += [KERNEL, *(f"    {name} = {n} * t % {m}" for name, n, m in start)]
        lines += [*self.block(3, 6), *(f"    out[t, {i}] += {v}" for i, v in enumerate(VARIABLES))]
        return "\n".join(lines) + "\n"


def write_program(seed: int, folder: Path) -> ModuleType:
    return imported(folder / f"program_{seed}.py", Writer(seed).program())


def arguments(num_threads: int = NUM_THREADS) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((num_threads, ROW), np.int64)
    return out, np.arange(12).reshape(3, 4) * 7 % 11


def run_thread_by_thread(module: ModuleType) -> np.ndarray:
    """What plain Python makes of the program: each thread alone, one after another."""
    out, table = arguments()
    rows, table = out.astype(object), table.tolist()  # of integers of Python
    zero = SimpleNamespace(x=0)
    cuda = SimpleNamespace(threadIdx=SimpleNamespace(x=0), blockIdx=zero, blockDim=zero)
    names = {"cuda": cuda}
    names["helper"] = FunctionType(module.helper.py_func.__code__, names)
    kernel = FunctionType(module.kernel.py_func.__code__, names)
    for cuda.threadIdx.x in range(NUM_THREADS):
        kernel(rows, table)
    return rows.astype(out.dtype)
