"""The process of a submission: run it on the cases of one task, and report its results.

    python -m pa_tutorial.coursework.child ASSIGNMENT TASK DRAW MEGABYTES

It starts in the folder of the submission. As soon as a case has run, it writes a line of JSON to
standard output: `case`, and `arrays` (safetensors in base64) or the `problem` that kept it from
returning any. The parent compares the results and grades them; this process doesn't.
"""

import base64
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import torch
from safetensors.torch import save

from pa_tutorial.checks.running import describe, torch_settings_kept
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.printing import print_anything

try:
    import resource
except ImportError:  # Windows
    resource = None

MEGABYTE = 2**20
FILE_MEGABYTES = 64  # more than Numba or Triton store per kernel
MOST_SIGNS = 2000  # characters of a message, because an answer's error may have any length


def main(assignment_name: str, task_name: str, draw: str, megabytes: str) -> None:
    channel = own_channel()
    task = assignment(assignment_name).task(task_name)
    trials = task.trials(int(draw))
    limit_resources(int(megabytes))
    sys.path.append(os.getcwd())  # at the end, so that a student's torch.py doesn't hide torch
    try:
        answer = task.answer()
    except BaseException as error:  # SystemExit too
        say(channel, problem=describe(error))
        return
    for trial in trials:
        try:
            with torch_settings_kept():
                arrays = as_text(trial.run(answer))
        except BaseException as error:
            say(channel, case=trial.name, problem=describe(error))
        else:
            say(channel, case=trial.name, arrays=arrays)


def own_channel() -> TextIO:
    """Keep standard output for our report, and discard what the student's code prints."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return channel


def say(channel: TextIO, **words: str) -> None:
    if "problem" in words:
        words["problem"] = words["problem"][:MOST_SIGNS]
    print(json.dumps(words), file=channel, flush=True)


def as_text(arrays: Mapping[str, Any]) -> str:
    tensors = {name: torch.as_tensor(array).detach().cpu() for name, array in arrays.items()}
    apart = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    return base64.b64encode(save(apart)).decode()


def limit_resources(megabytes: int) -> None:
    """From now on, limit the size of files that this process writes and, on Linux, its memory."""
    if resource is None:
        return
    most = FILE_MEGABYTES * MEGABYTE
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="utf-8") as file:
            pages = int(file.read().split()[0])
        most = pages * resource.getpagesize() + megabytes * MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    print_anything()
    main(*sys.argv[1:])
