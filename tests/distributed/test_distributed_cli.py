"""python -m pa_tutorial.engine under torchrun: what it prints, how it ends when a rank fails."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pa_tutorial.engine.__main__ import main
from tests import absent
from tests.processes import still_there

TESTS, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PROMPTS = ["The for statement", "The for", "The while statement"]
# The command line, with a fault on rank 1: in its step 2, after the first layer of two.
FAULTY = """
import os, sys
from tests.distributed import distributed_serving
from pa_tutorial.engine.__main__ import main
from pa_tutorial.engine.runner import Runner

def attention(*arguments, attention=Runner.attention, calls=[]):
    calls.append(1)
    if len(calls) == 6 and os.environ["RANK"] == "1":
        distributed_serving.do_harm(os.environ["FAULT"])
    return attention(*arguments)

Runner.attention = attention
print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
sys.exit(main())
"""


def torchrun(folder: Path, *arguments: object, fault: str = "") -> tuple[int, str, list[str]]:
    """Of two ranks: the exit code of torchrun, what it printed, standard error of each rank."""
    absent.require("POSIX")
    (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")
    program = [str(folder / "faulty.py")] if fault else ["-m", "pa_tutorial.engine"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--log-dir", str(folder), "--redirects", "2", *program]
    command += ["--tensor-parallel", "2", "--no-progress", *map(str, arguments)]
    paths = os.pathsep.join([str(TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "FAULT": fault, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    # A process group of its own: what is left of it could be ended as a whole.
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as job:
        try:
            out, _ = job.communicate(timeout=120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    logs = [next(folder.glob(f"*/attempt_0/{rank}/stderr.log")) for rank in (0, 1)]
    return job.returncode, out, [log.read_text(encoding="utf-8") for log in logs]


def test_two_ranks_print_what_one_device_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Answers, samples, the refusal of one prompt and statistics; and the exit code."""
    arguments = [*PROMPTS, "x" * 300, "--statistics", "--token-budget", "8", "--max-tokens", "6"]
    arguments += ["--num-samples", "2", "--temperature", "0.7", "--every", "2"]
    assert main([*arguments, "--no-progress"]) == 1
    expected = capsys.readouterr().out
    assert torchrun(tmp_path, *arguments) == (1, expected, ["", ""])
    assert expected.count("[length]") == 6
    assert "error: len(prompt) + max_tokens - 1 is 305" in expected


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("hang", "[rank 0] the job ends: rank 1 did not come to step 2"),
        # The engine of one device would try again, sequence by sequence.
        ("raise", "[rank 1] the job ends: rank 1 failed in step 2: ArithmeticError: a layer broke"),
    ],
)
def test_a_rank_that_is_lost_in_a_step_is_named(fault: str, says: str, tmp_path: Path) -> None:
    """Without an answer, and nobody is left."""
    code, out, said = torchrun(tmp_path, *PROMPTS, "--limit", 4, fault=fault)
    assert says in "".join(said)
    assert (code, out) == (1, "")
    pids = [int(pid) for pid in re.findall(r"^pid (\d+)$", "".join(said), re.M)]
    assert len(pids) == 2
    assert not still_there(pids, 5)


ONE_OF = "it must be one of [1, 2, 4]: the model has 4 query heads and 2 KV heads"
START = "ranks run; use torchrun --nproc-per-node 2 -m pa_tutorial.engine"


@pytest.mark.parametrize(
    ("started", "arguments", "message"),
    [
        ("3", ["3"], f"--tensor-parallel is 3; {ONE_OF}"),
        ("0", ["0"], f"--tensor-parallel is 0; {ONE_OF}"),
        ("2", ["-2"], f"--tensor-parallel is -2; {ONE_OF}"),
        (None, ["2"], f"--tensor-parallel is 2, but 0 {START}"),
        ("4", ["2"], f"--tensor-parallel is 2, but 4 {START}"),
        ("2", ["2", "--limit", "0"], "limit is 0.0; it must be seconds, more than 0"),
        ("2", ["2", "--limit", "nan"], "limit is nan; it must be seconds, more than 0"),
        ("2", ["2", "--limit", "inf"], "limit is inf; it must be seconds, more than 0"),
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
        main(["x", "--tensor-parallel", *arguments, "--no-progress"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
