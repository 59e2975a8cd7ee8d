"""python -m pa_tutorial.engine under torchrun: what it prints, how it ends when a rank fails."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import absent
import pytest
from distributed_serving import Gaps
from processes import still_there

from pa_tutorial.distributed.group import GRACE
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.__main__ import main

TESTS, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PROMPTS = ["The for statement", "The for", "The while statement"]
LIMIT = 4.0
# What a loaded machine may add to that.
SLACK = 15.0


@dataclass
class Ended:
    """What is left of a job.

    code    the exit code of torchrun
    out     what it printed
    said    standard error of each rank
    told    what torchrun says
    at      when it had ended
    """

    code: int
    out: str
    said: list[str]
    told: str
    at: float

    def of_fault(self) -> float:
        """When the harm was done."""
        found = re.search(r"fault at ([\d.]+)", "".join(self.said))
        assert found, self.said
        return float(found[1])

    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"^pid (\d+)$", "".join(self.said), re.M)]


@contextmanager
def torchrun(
    folder: Path, *arguments: object, module: str = "pa_tutorial.engine", fault: str = "none:0:0"
) -> Iterator[subprocess.Popen]:
    """Two ranks; each one's standard error in a file of its own."""
    absent.require("POSIX")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--log-dir", str(folder), "--redirects", "2"]
    command += ["-m", module, "--tensor-parallel", "2", "--no-progress", *map(str, arguments)]
    paths = os.pathsep.join([str(TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "FAULT": fault, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    # A process group of its own: what is left of it could be ended as a whole.
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as job:
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


def log_of(folder: Path, rank: int) -> str:
    logs = list(folder.glob(f"*/attempt_0/{rank}/stderr.log"))
    return logs[0].read_text(encoding="utf-8") if logs else ""


def end_of(job: subprocess.Popen, folder: Path) -> Ended:
    out, told = job.communicate(timeout=120)
    said = [log_of(folder, rank) for rank in (0, 1)]
    return Ended(job.returncode, out, said, told, time.time())


def run(folder: Path, *arguments: object, **options: str) -> Ended:
    with torchrun(folder, *arguments, **options) as job:
        return end_of(job, folder)


SAMPLING = ["--max-tokens", "6", "--num-samples", "2", "--temperature", "0.7", "--every", "2"]


def test_two_ranks_print_what_one_device_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Answers, samples, the refusal of one prompt and statistics; and the exit code."""
    arguments = [*PROMPTS, "x" * 300, "--statistics", "--token-budget", "8", *SAMPLING]
    assert main([*arguments, "--no-progress"]) == 1
    ended = run(tmp_path, *arguments)
    assert ended.out == capsys.readouterr().out
    assert ended.out.count("[length]") == 6
    assert "error: len(prompt) + max_tokens - 1 is 305" in ended.out
    assert ended.code == 1
    assert ended.said == ["", ""]


def test_a_checkpoint_on_two_ranks_answers_as_on_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from hf_models import random_model
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "model"
    random_model("llama", attention_bias=True).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(96)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    prompts = ["w5 w6 w7", "w40", "w5 w6 w8 w9"]
    llm = LLM(folder, make_runner=Gaps)
    llm.generate(prompts, SamplingParams(max_tokens=8), progress=False)
    assert min(llm.engine.runner.gaps) > 1e-3, "no tie that rounding, some 1e-5, could turn"

    arguments = [*prompts, "--model", str(folder), "--max-tokens", "8", "--stage", "cpu"]
    assert main([*arguments, "--no-progress"]) == 0
    ended = run(tmp_path / "logs", *arguments)
    assert ended.out == capsys.readouterr().out
    assert ended.out.count("> w") == 3
    assert ended.code == 0


# kind, rank: what torchrun or a rank says, and how long after the fault all may take to end.
@pytest.mark.parametrize(
    ("fault", "says", "within"),
    [
        ("kill:0:2", r"Root Cause[^*]*rank +: 0 [^*]*SIGKILL", 1),
        ("kill:1:2", r"Root Cause[^*]*rank +: 1 [^*]*SIGKILL", 1),
        ("hang:1:2", r"\[rank 0\] the job ends: rank 1 did not come to step 2", LIMIT + GRACE),
        # The engine of one device would try again, sequence by sequence.
        ("raise:0:2", r"\[rank 0\] .*: rank 0 failed in step 2: ArithmeticError: a layer broke", 1),
    ],
)
def test_a_rank_that_is_lost_in_a_step_is_named(
    fault: str, says: str, within: float, tmp_path: Path
) -> None:
    """Soon, without an answer, and nobody is left."""
    ended = run(tmp_path, *PROMPTS, "--limit", LIMIT, module="distributed_faults", fault=fault)
    assert re.search(says, ended.told + "".join(ended.said), re.S)
    assert (ended.code, ended.out) == (1, "")
    assert ended.at - ended.of_fault() < within + SLACK
    assert len(ended.pids()) == 2
    assert not still_there(ended.pids(), 5)


def test_a_rank_with_another_block_size_is_refused_by_all(tmp_path: Path) -> None:
    ended = run(tmp_path, *PROMPTS, module="distributed_faults", fault="options:1:0")
    assert (ended.code, ended.out) == (1, "")
    message = "the job ends: before the first step: rank 1 has other cache than rank 0; nothing"
    assert message in "".join(ended.said)


def test_an_interrupt_in_a_step_leaves_no_process(tmp_path: Path) -> None:
    with torchrun(tmp_path, *PROMPTS, module="distributed_faults", fault="slow:1:1") as job:
        deadline = time.monotonic() + 90
        while "fault at" not in log_of(tmp_path, 1):  # it is in a step
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        job.send_signal(signal.SIGINT)
        sent = time.monotonic()
        ended = end_of(job, tmp_path)
    assert time.monotonic() - sent < SLACK
    assert ended.code != 0
    assert ended.out == ""
    assert len(ended.pids()) == 2
    assert not still_there([job.pid, *ended.pids()], 5)


ONE_OF = "it must be one of [1, 2, 4]: the model has 4 query heads and 2 KV heads"
NO_TIME = "it must be seconds, more than 0"
START = "ranks run; use torchrun --nproc-per-node 2 -m pa_tutorial.engine"


@pytest.mark.parametrize(
    ("started", "arguments", "message"),
    [
        *(
            (n, ["--tensor-parallel", n], f"--tensor-parallel is {n}; {ONE_OF}")
            for n in ("3", "-2")
        ),
        ("0", ["--tensor-parallel", "0"], f"--tensor-parallel is 0; {ONE_OF}"),
        (None, ["--tensor-parallel", "2"], f"--tensor-parallel is 2, but 0 {START}"),
        ("4", ["--tensor-parallel", "2"], f"--tensor-parallel is 2, but 4 {START}"),
        ("2", ["--tensor-parallel", "2", "--limit", "0"], f"limit is 0.0; {NO_TIME}"),
        ("2", ["--tensor-parallel", "2", "--limit", "nan"], f"limit is nan; {NO_TIME}"),
        ("2", ["--tensor-parallel", "2", "--limit", "inf"], f"limit is inf; {NO_TIME}"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(
    started: str | None,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it joins the others, a rank is a process like any other: no need to start some."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if started:
        monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(SystemExit) as ended:
        main(["x", *arguments, "--no-progress"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
