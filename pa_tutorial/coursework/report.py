"""What the process of a submission says to the grader: lines of JSON, each with a `key`.

cell, time                 a cell begins; of a folder, 0 imports its files
cell, error                it ended with an error
task, cell, said, is_right attempt was given an answer, and showed this verdict
task, case, arrays         in a case, the answer returned these (safetensors in base64)
task, case, problem        or there was a problem; without a case, in all. With arrays: it is
                           one only if these are right
done                       every cell has run
"""

import base64
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

import torch
from safetensors.torch import save

from pa_tutorial.checks.calls import OnlyIfRightError
from pa_tutorial.checks.running import Trial, describe, one_thread, torch_settings_kept
from pa_tutorial.tracebacks import own_frames

MOST_SIGNS = 4000  # characters of a message, because an answer's error may have any length


def without_references(trials: Sequence[Trial]) -> list[Trial]:
    return [replace(trial, references={}, problem=None, goal=None) for trial in trials]


class Report:
    """Writes to what was standard output; what a student's code prints there is discarded."""

    def __init__(self, key: str, seconds: float) -> None:
        """
        key      of the lines: what else is written there isn't ours
        seconds  the time limit of a cell
        """
        self.key = key
        self.channel: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        self.cell, self.seconds = 0, seconds

    def say(self, **words: object) -> None:
        print(json.dumps({**words, "key": self.key}), file=self.channel, flush=True)

    def say_cell(self, number: int) -> None:
        self.cell = number
        self.say(cell=number, time=time.time())

    def say_error(self, error: BaseException) -> None:
        words = error_with_place(error)
        if isinstance(error, KeyboardInterrupt):
            words = f"stopped after {self.seconds:g} s{place_of(error)}: it does not end"
        self.say(cell=self.cell, error=words[:MOST_SIGNS])

    def say_task(self, task: str, said: str = "", is_right: bool = False) -> None:
        self.say(task=task, cell=self.cell, said=said[:MOST_SIGNS], is_right=is_right)

    def say_problem(self, task: str, error: BaseException, **case: str) -> None:
        self.say(task=task, problem=describe(error)[:MOST_SIGNS], **case)

    def try_answer(self, task: str, answer: Any, trials: Sequence[Trial]) -> None:
        """Report what an answer returns in each case."""
        for trial in trials:
            try:
                with one_thread(), torch_settings_kept():
                    arrays = as_text(trial.run(answer))
            except KeyboardInterrupt:
                raise
            except OnlyIfRightError as error:
                self.say_problem(task, error, case=trial.name, arrays=as_text(error.found))
            except BaseException as error:
                self.say_problem(task, error, case=trial.name)
            else:
                self.say(task=task, case=trial.name, arrays=arrays)


def as_text(arrays: Mapping[str, Any]) -> str:
    tensors = {name: torch.as_tensor(array).detach().cpu() for name, array in arrays.items()}
    apart = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    return base64.b64encode(save(apart)).decode()


def error_with_place(error: BaseException) -> str:
    """ "NameError in cell 3, line 14: name 'x' is not defined" """
    kind, (words, *_) = type(error).__name__, [*describe(error).splitlines(), ""]
    words = error.msg if isinstance(error, SyntaxError) else words
    return f"{kind}{place_of(error)}: {words.removeprefix(f'it raised {kind}: ')}"


def place_of(error: BaseException) -> str:
    """The last line of the submission's that ran, or that isn't Python."""
    places = [(frame.f_code.co_filename, number) for frame, number in own_frames(error)]
    if isinstance(error, SyntaxError) and error.lineno:
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        if cell := re.fullmatch(r"<(cell \d+)>", file):
            return f" in {cell[1]}, line {line}"
        if file.startswith(os.getcwd()):
            return f" in {os.path.basename(file)}, line {line}"
    return ""
