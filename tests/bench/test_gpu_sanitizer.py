"""compute-sanitizer: what it says is read, and what it watches launches every kernel.

A small program stands in for it. The texts are in its documented form.
Source: NVIDIA, Compute Sanitizer user manual.
"""

import json
import os
import sys
from pathlib import Path

import absent
import pytest

from pa_tutorial.bench import gpu_sanitize, gpu_sanitizer, variants
from pa_tutorial.bench.gpu_sanitize import DONE, launch_all
from pa_tutorial.bench.gpu_sanitizer import NotChecked, compare, num_errors
from pa_tutorial.kernels import running

RAN = f"========= COMPUTE-SANITIZER\n{DONE}: 21 steps\n"
CLEAN = {
    "memcheck": f"{RAN}========= ERROR SUMMARY: 0 errors\n",
    "racecheck": f"{RAN}========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}
OUT_OF_BOUNDS = f"""{RAN}========= Invalid __global__ read of size 16 bytes
=========     at paged_attention_kernel+0x2f0
=========     by thread (31,0,0) in block (0,1,0)
=========     Access at 0x7f3a00000200 is out of bounds
========= ERROR SUMMARY: 1 error
"""
MANY = f"""{RAN}========= Invalid __shared__ write of size 4 bytes
========= ERROR SUMMARY: 250 errors
========= ERROR SUMMARY: 150 errors were not printed. Use --print-limit option to adjust
"""
RACE = f"""{RAN}========= Error: Race reported between Write access at kernel+0x40
=========     and Read access at kernel+0x80 [512 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "said", "count"),
    [
        ("memcheck", CLEAN["memcheck"], 0),
        ("racecheck", CLEAN["racecheck"], 0),
        ("memcheck", OUT_OF_BOUNDS, 1),
        ("memcheck", MANY, 250),
        ("racecheck", RACE, 1),
    ],
)
def test_errors_are_counted(tool: str, said: str, count: int) -> None:
    assert num_errors(tool, said) == count


@pytest.mark.parametrize(
    "said",
    [
        "========= Error: Target application terminated before first instrumented API call\n",
        "========= COMPUTE-SANITIZER\nModuleNotFoundError: no numba\n"
        "========= ERROR SUMMARY: 0 errors\n",
        "",
    ],
    ids=["nothing watched", "program failed", "nothing said"],
)
def test_no_errors_of_a_program_that_did_not_launch_all_say_nothing(said: str) -> None:
    with pytest.raises(NotChecked, match="memcheck did not come to an end"):
        num_errors("memcheck", said)


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named compute-sanitizer that prints what stands in a file of its tool's name."""
    absent.require("POSIX")
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "tool = sys.argv[sys.argv.index('--tool') + 1]\n"
        "told = {'arguments': sys.argv[1:], 'folder': os.getcwd(), **os.environ}\n"
        "(folder / f'{tool}.json').write_text(json.dumps(told))\n"
        "print((folder / tool).read_text(), flush=True)\n"
        "if (folder / 'hang').exists(): time.sleep(60)\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    for tool, said in CLEAN.items():
        (tmp_path / tool).write_text(said, encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_sanitizer, "PLACES", ("/nowhere/cuda*/compute-sanitizer",))
    return tmp_path


def test_both_tools_find_nothing(sanitizer: Path, capsys) -> None:
    found = compare(seconds=30)
    assert found["wrong"] == []
    assert found["memcheck"] == found["racecheck"] == {"errors": 0, "first": ""}
    assert capsys.readouterr().out == "memcheck: 0 errors\nracecheck: 0 errors\n"


def test_they_watch_our_program_with_a_tensor_an_allocation(sanitizer: Path) -> None:
    compare(seconds=30)
    for tool in CLEAN:
        told = json.loads((sanitizer / f"{tool}.json").read_text(encoding="utf-8"))
        assert told["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
        assert told["arguments"][-3:] == [sys.executable, "-m", "pa_tutorial.bench.gpu_sanitize"]
        assert Path(told["folder"], "pa_tutorial").is_dir(), "else python -m does not find it"


def test_what_they_find_is_wrong_and_quoted(sanitizer: Path, capsys) -> None:
    (sanitizer / "memcheck").write_text(OUT_OF_BOUNDS, encoding="utf-8")
    (sanitizer / "racecheck").write_text(RACE, encoding="utf-8")
    found = compare(seconds=30)
    assert found["wrong"] == ["memcheck: 1 errors", "racecheck: 1 errors"]
    assert found["memcheck"]["first"] == "Invalid __global__ read of size 16 bytes"
    assert "Race reported between Write access" in capsys.readouterr().out


def test_a_tool_that_does_not_end_is_stopped(sanitizer: Path, capsys) -> None:
    (sanitizer / "hang").touch()
    found = compare(seconds=1)
    assert found["memcheck"] == {"not_checked": "memcheck was not done when its time was over"}
    assert found["wrong"] == []
    assert "racecheck not run: " in capsys.readouterr().out


def test_without_the_tool_it_is_said_why(sanitizer: Path, capsys) -> None:
    (sanitizer / "compute-sanitizer").unlink()
    found = compare(seconds=1)
    why = "there is no compute-sanitizer on PATH, nor at /nowhere/cuda*/compute-sanitizer"
    assert found == {tool: {"not_checked": why} for tool in CLEAN} | {"wrong": []}
    assert f"memcheck not run: {why}" in capsys.readouterr().out


def test_the_newest_is_taken_where_path_has_none(sanitizer: Path, monkeypatch) -> None:
    places = [sanitizer / f"cuda-{v}/bin/compute-sanitizer" for v in ("12.9", "13.0")]
    for place in places:
        place.parent.mkdir(parents=True)
        place.touch(mode=0o755)
    monkeypatch.setattr(gpu_sanitizer, "PLACES", (str(sanitizer / "cuda*/bin/compute-sanitizer"),))
    assert gpu_sanitizer.find_sanitizer() == str(sanitizer / "compute-sanitizer")
    monkeypatch.setenv("PATH", os.devnull)
    assert gpu_sanitizer.find_sanitizer() == str(places[1])


def test_every_kernel_is_launched(monkeypatch) -> None:
    names = []
    simulate = running.Launch.simulate

    def noted(prepared: running.Launch, **options: object) -> object:
        partition_size = getattr(prepared.geometry, "PARTITION_SIZE", 0)
        names.append((prepared.kernel.py_func.__name__, partition_size))
        return simulate(prepared, **options)

    monkeypatch.setattr(running.Launch, "simulate", noted)
    monkeypatch.setattr(variants, "run_twin", lambda prepared: names.append("twin"))
    assert launch_all("cpu", gpu_sanitize.CASES[1:2]) == len(variants.PAGED) + 3
    assert names.count("twin") == 2
    launched = {name for name in names if name != "twin"}
    assert {name for name, _ in launched} == {
        "naive_kernel",
        "paged_attention_kernel",
        "paged_attention_reduce_kernel",
        "reshape_and_cache_kernel",
        "copy_blocks_kernel",
    }
    partitions = {size for name, size in launched if name == "paged_attention_kernel"}
    assert partitions == {0, gpu_sanitize.PARTITION_SIZE, 512}
