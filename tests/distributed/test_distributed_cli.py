"""python -m pa_tutorial.distributed: what it prints, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from pa_tutorial.distributed.__main__ import main
from pa_tutorial.engine.__main__ import main as alone


@pytest.mark.rest("test_distributed_context.py and test_engine_cli.py")
@pytest.mark.needs("POSIX")
def test_two_ranks_print_what_one_device_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Answers, samples, the refusal of one prompt and statistics; and the exit code."""
    arguments = ["The for statement", "The for", "x" * 300, "--statistics", "--token-budget", "8"]
    arguments += ["--max-tokens", "6", "--num-samples", "2", "--temperature", "0.7"]
    arguments += ["--no-progress"]
    assert alone(arguments) == 1
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--log-dir={tmp_path}", "-m", "pa_tutorial.distributed", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240)
    assert (done.returncode, done.stdout) == (1, capsys.readouterr().out)
    assert done.stdout.count("[length]") == 4
    assert "error: len(prompt) + max_tokens - 1 is 305" in done.stdout


@pytest.mark.parametrize(
    ("started", "arguments", "message"),
    [
        ("3", [], "--nproc-per-node is 3; it must be one of [1, 2, 4]"),
        ("0", [], "WORLD_SIZE is 0; it must be set: start it with torchrun"),
        ("2", ["--limit", "inf"], "limit is inf"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(
    started: str,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it joins the others, a rank is a process like any other: no need to start some."""
    monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(SystemExit, match="2"):
        main(["x", *arguments, "--no-progress"])
    assert message in capsys.readouterr().err
