"""python -m pa_tutorial.engine: answers, exit codes, and what it prints."""

import re
from pathlib import Path

import pytest

from pa_tutorial.attention import tiny_lm
from pa_tutorial.checks.ladder import PAGED, backend_named
from pa_tutorial.engine import command
from pa_tutorial.engine.__main__ import main

PROMPT = "The for statement"


def test_a_refused_prompt_gives_1_and_the_others_are_answered(
    capsys: pytest.CaptureFixture,
) -> None:
    assert main(["x" * 300, PROMPT, "--max-tokens", "8", "--no-progress"]) == 1
    out = capsys.readouterr().out
    assert "  error: len(prompt) + max_tokens - 1 is 307" in out
    answer = tiny_lm.decode(tiny_lm.load().generate(tiny_lm.encode(PROMPT), 8))
    assert out.endswith(f"> {PROMPT}\n  {answer}   [length]\n")


def test_the_command_has_every_backend_of_the_ladder() -> None:
    of_command = {name: command.backend_named(name) for name in command.BACKENDS}
    assert of_command == {name: backend_named(name) for name in PAGED}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt"),
        (["x", "--num-blocks", "1"], "num_blocks is 1"),
        (["x", "--every", "-1"], "--every is -1"),
        (["x", "--model", "no_such_folder"], "no_such_folder has no config.json"),
    ],
)
def test_bad_options_give_2_and_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_every_line_of_a_file_is_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """And every sample of an answer is printed, then a line for each step."""
    file = tmp_path / "prompts.txt"
    file.write_text(f"{PROMPT}\n\nThe if\n", encoding="utf-8")
    sampling = ["--num-samples", "3", "--temperature", "1", "--max-tokens", "2", "--every", "2"]
    assert main(["--file", str(file), "--statistics", *sampling]) == 0
    answers, _, steps = capsys.readouterr().out.partition("step  running")
    assert re.findall("> .*", answers) == [f"> {PROMPT}", "> The if"]
    assert answers.count("[length]") == 6
    rows = [line.split() for line in steps.splitlines()[1:]]
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3]
    assert rows[0][3] == str(len(PROMPT)), "tokens of the prefill"
