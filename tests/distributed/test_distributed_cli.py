"""python -m pa_tutorial.distributed: what it prints, how it ends when a rank fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pa_tutorial.distributed.__main__ import main
from pa_tutorial.engine.__main__ import main as alone
from tests.processes import still_there

# The command line, with a fault on rank 1: in its step 2, after the first layer of two.
FAULTY = """
import os, sys
from pa_tutorial.distributed.__main__ import main
from pa_tutorial.engine.runner import Runner

def run(runner, batch, run=Runner.run, calls=[]):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1":
        raise ArithmeticError("a layer broke")
    return run(runner, batch)

Runner.run = run
print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
sys.exit(main())
"""


def torchrun(folder: Path, *program: object) -> subprocess.CompletedProcess:
    """Of two ranks, without a bar."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--log-dir={folder}", *map(str, program), "--no-progress"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 240}
    return subprocess.run(command, env=environment, **options)


@pytest.mark.rest("test_distributed_context.py and test_engine_cli.py")
@pytest.mark.needs("POSIX")
def test_two_ranks_print_what_one_device_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Answers, samples, the refusal of one prompt and statistics; and the exit code."""
    arguments = ["The for statement", "The for", "x" * 300, "--statistics", "--token-budget", "8"]
    arguments += ["--max-tokens", "6", "--num-samples", "2", "--temperature", "0.7"]
    assert alone([*arguments, "--no-progress"]) == 1
    done = torchrun(tmp_path, "-m", "pa_tutorial.distributed", *arguments)
    assert (done.returncode, done.stdout) == (1, capsys.readouterr().out)
    assert done.stdout.count("[length]") == 4
    assert "error: len(prompt) + max_tokens - 1 is 305" in done.stdout


@pytest.mark.rest("test_distributed_ranks.py")
@pytest.mark.needs("POSIX")
def test_torchrun_reports_the_rank_and_the_step_that_failed_and_no_process_is_left(
    tmp_path: Path,
) -> None:
    """The engine of one device would try again, sequence by sequence."""
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY, encoding="utf-8")
    done = torchrun(tmp_path, program, "The for statement")
    assert (done.returncode, done.stdout) == (1, "")
    for said in ("rank      : 1", "ArithmeticError: a layer broke", "This is rank 1, in step 2."):
        assert said in done.stderr.partition("Root Cause")[2]
    pids = [int(pid) for pid in re.findall(r"^pid (\d+)$", done.stderr, re.M)]
    assert len(pids) == 2
    assert not still_there(pids, 5)


ONE_OF = "it must be one of [1, 2, 4]: the model has 4 query heads and 2 KV heads"
START = "start it with torchrun --nproc-per-node 2 -m pa_tutorial.distributed"


@pytest.mark.parametrize(
    ("started", "arguments", "message"),
    [
        ("3", [], f"--nproc-per-node is 3; {ONE_OF}"),
        (None, [], f"WORLD_SIZE is 0; it must be set: {START}"),
        ("2", ["--limit", "0"], "limit is 0.0; it must be seconds, more than 0"),
        ("2", ["--limit", "inf"], "limit is inf; it must be seconds, more than 0"),
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
