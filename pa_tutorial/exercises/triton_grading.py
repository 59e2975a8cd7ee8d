"""Grading of Triton kernels: they run in the interpreter, and each address is checked."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written, same_numbers
from pa_tutorial.kernels.triton.backend import why_absent

if why_absent() is None:
    import triton
    import triton.language as tl
else:  # the exercises can be read, and say why they cannot be run
    triton, tl = SimpleNamespace(jit=lambda function: function), None

NOT_WRITTEN = 54321.0  # what an output holds before a kernel writes to it
ONLY_PYTHON = "Python runs it, but Triton can't compile"
TAKES_LESS = (
    "The compiler takes less than Python: no lists, no built-in max or sum, no `if` on a tile."
)


def other_slots(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[str | None, tuple]:
    """For a case of append_keys with four blocks of 16: new words if need be, and its sizes.

    Every token gets another block and an offset inside it; three_tokens has the first offset of a
    block and the last one, too. large_pool: the first token goes to block 3. Slot 0 is in nowhere
    only, beside -1.
    """
    slots, *rest = sizes
    blocks = rng.permutation((1, 2, 3))
    if name == "large_pool":
        blocks = np.array((3, int(rng.integers(3))))
    offsets = rng.integers(1, 15, len(blocks))
    if name == "three_tokens":
        offsets[:2] = 0, 15
    new = [int(16 * b + o) for b, o in zip(blocks, offsets, strict=True)][: len(slots)]
    if name == "nowhere":
        new[:2] = rng.permutation((-1, 0)).tolist()
    words = f"slot {new[0]}" if name == "one_token" else None
    return words, (tuple(new), *rest)


def unwritten(*shape: int) -> Tensor:
    return torch.full(shape, NOT_WRITTEN)


class OutsideError(AnswerError, IndexError):
    """A kernel's address is outside every tensor; a verdict says what usually is the cause."""


@dataclass(frozen=True)
class Written:
    """An answer that another kernel calls; it says so if the answer isn't written yet, or if it
    doesn't return as many tiles as there are names."""

    answer: Callable
    names: tuple[str, ...] = ()

    def __call__(self, *arguments: object) -> object:
        result = require_written(self.answer(*arguments))
        if self.names and not (isinstance(result, tuple) and len(result) == len(self.names)):
            raise AnswerError(
                f"the function must return {len(self.names)}: {', '.join(self.names)}"
            )
        return result


def run_kernel(function: Callable, grid: tuple[int, ...], **arguments: object) -> None:
    """Run an answer, to which @triton.jit is added, on tensors on the CPU.

    Raises ImportError where there is no Triton, AnswerError for whatever the kernel does wrong.
    """
    if why := why_absent():
        raise ImportError(f"this exercise cannot run here: {why}")
    from triton.runtime.errors import InterpreterError

    from pa_tutorial.kernels.triton.interpreter import MemoryFault, interpret

    if hasattr(function, "fn"):  # with @triton.jit already
        function = function.fn
    inputs = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
    before = {name: t.clone() for name, t in inputs.items() if not name.startswith("out")}
    try:
        interpret(triton.jit(function), grid, **arguments)
    except MemoryFault as fault:
        raise OutsideError(f"the kernel stops: {fault}") from None
    except InterpreterError as error:
        cause = root_of(error)
        if isinstance(cause, AnswerError):
            raise cause from None
        raise AnswerError(f"the kernel stops: {type(cause).__name__}: {cause}") from None
    for name, tensor in before.items():
        if not same_numbers(tensor, inputs[name]):
            raise AnswerError(f"the kernel changed {name}; it must only read it")


def run_compiled(function: Callable, grid: tuple[int, ...], **arguments: object) -> None:
    """Run an answer, and then see whether Triton's compiler takes it, too; it needs no GPU.

    Raises AnswerError with the reader's line if it doesn't. Where nothing can be compiled, the
    interpreter's verdict is all there is.
    """
    run_kernel(function, grid, **arguments)
    from triton.compiler.errors import CompilationError

    from pa_tutorial.kernels.triton.backend import TritonCall
    from pa_tutorial.kernels.triton.compiled import compile_call

    constants = {name: value for name, value in arguments.items() if name.isupper()}
    answer = function
    if "CALL" in constants:
        answer = constants["CALL"] = constants["CALL"].answer
    if not hasattr(answer, "fn"):
        raise AnswerError(f"{ONLY_PYTHON} it: @triton.jit is missing in the line above its def")
    values = {name: value for name, value in arguments.items() if name not in constants}
    try:
        compiled = compile_call(TritonCall(function, grid, values, constants))
    except CompilationError as error:
        said = f"{line_of(error, answer)}: {reason_of(error)}"
        raise AnswerError(f"{ONLY_PYTHON} {said}\n{TAKES_LESS}") from None
    except Exception as error:
        if "Unsupported function" not in str(error):
            return  # there is no assembler, perhaps
        raise AnswerError(f"{ONLY_PYTHON} it: {error}; @triton.jit is missing there") from None
    if compiled.count("mma.sync") and "tf32" in compiled.ptx:
        raise AnswerError(
            'on a GPU, tl.dot would keep 10 bits of the fraction: give it input_precision="ieee"'
        )


def line_of(error: BaseException, answer: Callable) -> str:
    """The line of the answer at which the compiler stopped: as a cell counts, and its text."""
    while error is not None:
        if getattr(error, "src", None) == answer.src and hasattr(error.node, "lineno"):
            lines, number = answer.src.splitlines(), error.node.lineno
            above = len(answer.raw_src) - len(lines)  # the decorator
            at = answer.starting_line_number + above + number - 1
            return f"line {at}, `{lines[number - 1].strip()}`"
        error = error.__cause__
    return "a kernel that calls it"


def reason_of(error: BaseException) -> str:
    root = root_of(error)
    reason = getattr(root, "error_message", None) or str(root)
    return reason.strip().partition("\n")[0]


def root_of(error: BaseException) -> BaseException:
    """What was raised in the kernel: the interpreter wraps it, more than once."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def require_some_written(out: Tensor, before: float = NOT_WRITTEN) -> Tensor:
    """The output, if it is not all as before."""
    if (out == before).all():
        raise AnswerError("the kernel wrote nothing: not written yet?")
    return out


def sparse(num_elements: int, dtype: torch.dtype) -> Tensor:
    """Memory that is reserved, but takes room only where it is used: a file with holes."""
    with tempfile.TemporaryDirectory() as folder:  # the file goes when nobody holds it any more
        path = str(Path(folder) / "memory")
        return torch.from_file(path, shared=True, size=num_elements, dtype=dtype)
