"""The page of `make gpu`: each section by itself, in its time, and what goes wrong is a line."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pa_tutorial.bench import gpu, process_pool
from pa_tutorial.bench.gpu import GRACE_SECONDS, SECTIONS, Section, measure, run_section
from pa_tutorial.bench.process_pool import Done

MODULE = Section("A title", "process_pool", 5, 3)


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Puts modules with these functions `compare` in the place of all sections, run in this
    process."""

    def put(**functions: Callable) -> list[str]:
        found = {}
        for name, compare in functions.items():
            module = ModuleType(name)
            module.compare = compare
            monkeypatch.setitem(sys.modules, f"pa_tutorial.bench.{name}", module)
            found[name] = replace(MODULE, title=name, module=name)
        monkeypatch.setattr(gpu, "SECTIONS", found)
        monkeypatch.setattr(process_pool, "run_in_pool", in_this_process)
        return list(found)

    return put


def in_this_process(work: Callable, items: list, workers: int, seconds: float) -> Done:
    return Done({place: work(item) for place, item in enumerate(items)})


def right(seconds: float) -> dict[str, object]:
    print(f"{seconds} seconds were given")
    return {"equal": 3, "wrong": []}


def fails(seconds: float) -> dict[str, object]:
    print("before")
    raise RuntimeError("an illegal address\nand more")


def test_a_section_that_raises_is_a_line_the_others_go_on_and_make_fails(
    sections, tmp_path: Path, capsys
) -> None:
    names = sections(first=right, second=fails, third=right)
    assert measure(names, "Some GPU", tmp_path) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[:4] == [
        "first (0 s)",
        "  5 seconds were given",
        "second (0 s)",
        "  before",
    ]
    assert "  failed: RuntimeError: an illegal address\n" in said
    assert "third (0 s)\n  5 seconds" in said
    assert "1 failures" in said
    assert "FAILED second: RuntimeError: an illegal address" in said
    written = json.loads((tmp_path / "some-gpu.json").read_text(encoding="utf-8"))
    assert written["wrong"] == ["second: RuntimeError: an illegal address"]
    assert written["third"]["equal"] == 3
    assert "line" in written["second"]["traceback"]
    assert written["first"]["seconds"] >= 0


def test_what_a_section_names_as_wrong_makes_it_fail(sections, tmp_path: Path) -> None:
    names = sections(only=lambda seconds: {"wrong": ["one case"]})
    assert measure(names, "gpu", tmp_path) == 1
    names = sections(only=lambda seconds: {"different": ["a finding"]})
    assert measure(names, "gpu", tmp_path) == 0


def test_many_failures_are_counted_and_some_named(sections, tmp_path: Path, capsys) -> None:
    names = sections(many=lambda seconds: {"wrong": [f"case {i}" for i in range(10)]})
    assert measure(names, "gpu", tmp_path) == 1
    said = capsys.readouterr().out
    assert "10 failures" in said
    assert "FAILED many: case 7\n  … and 2 more" in said


def test_a_long_section_is_cut_on_the_page(sections, tmp_path: Path, capsys) -> None:
    def long(seconds: float) -> dict[str, object]:
        print("\n".join(f"line {i}" for i in range(9)))
        return {}

    measure(sections(long=long), "gpu", tmp_path)
    said = capsys.readouterr().out
    assert "  line 2\n  … and 6 more lines" in said
    assert "line 3" not in said


def test_no_section_takes_what_is_left_of_all_the_time(
    sections, tmp_path: Path, monkeypatch, capsys
) -> None:
    budgets = []

    def takes_long(seconds: float) -> dict[str, object]:
        budgets.append(seconds)
        time.sleep(0.5)
        return {}

    names = sections(first=takes_long, second=takes_long, third=takes_long)
    monkeypatch.setattr(gpu, "TOTAL_SECONDS", GRACE_SECONDS + 0.8)
    assert measure(names, "gpu", tmp_path) == 0
    assert budgets == [pytest.approx(0.8, abs=0.1), pytest.approx(0.3, abs=0.2)]
    assert "third (0 s)\n  not run: no time was left" in capsys.readouterr().out


def test_a_section_runs_in_a_process_of_its_own_which_is_ended(monkeypatch) -> None:
    asked = []

    def none(work: Callable, items: list, workers: int, seconds: float) -> Done:
        asked.append((work, items, workers, seconds))
        return Done(left_out=[0])

    monkeypatch.setattr(process_pool, "run_in_pool", none)
    results = gpu.results_of(MODULE, 5)
    assert asked == [(run_section, [("process_pool", 5)], 1, 5 + GRACE_SECONDS)]
    assert results["wrong"] == ["it was not done after 20 seconds"]
    monkeypatch.setattr(process_pool, "run_in_pool", lambda *_, **more: Done(failed={0: "it died"}))
    assert gpu.results_of(MODULE, 5) == {"wrong": ["it died"], "printed": "failed: it died\n"}


def test_a_section_comes_back_from_its_process() -> None:
    """One that needs a GPU fails there, with its own words."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    results = gpu.results_of(SECTIONS["streams"], 60)
    assert len(results["wrong"]) == 1
    assert "failed: " in results["printed"]
    assert "this_gpu" in results["traceback"]


def test_missing_packages_are_named_and_nothing_is_run(monkeypatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "numba_cuda" else name)
    results = gpu.results_of(MODULE, 5)
    assert results["printed"] == "not run: missing on this machine: numba_cuda\n"
    assert "wrong" not in results


def test_sections_fit_into_nine_minutes_and_one_page() -> None:
    assert sum(section.seconds for section in SECTIONS.values()) <= 530
    assert gpu.TOTAL_SECONDS < 540 - 10
    assert sum(1 + section.lines for section in SECTIONS.values()) <= 65
    for section in SECTIONS.values():
        compare = import_module(f"pa_tutorial.bench.{section.module}").compare
        assert next(iter(compare.__annotations__)) == "seconds"


# As a program ----------------------------------------------------------------------------------


def test_without_torch_it_says_so_and_exits_0(monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 0
    assert "torch is missing" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: make gpu uses it")
def test_without_a_gpu_it_says_so_and_exits_0() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pa_tutorial.bench.gpu"],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "No GPU here: nothing was measured" in done.stdout


def test_some_sections_alone(sections, tmp_path: Path, monkeypatch, capsys) -> None:
    sections(first=right, second=right)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in")
    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "1")  # put back afterwards
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path), "--only", "second"])
    assert gpu.main() == 0
    written = json.loads((tmp_path / "stand-in.json").read_text(encoding="utf-8"))
    assert "second" in written
    assert "first" not in written
    assert "Stand-in, torch " in capsys.readouterr().out


def test_all_modules_are_imported_without_what_such_a_machine_lacks() -> None:
    """No simulator, no figures, no tests."""
    names = ", ".join(f"pa_tutorial.bench.{section.module}" for section in SECTIONS.values())
    code = (
        "import sys\n"
        "for name in ('greenlet', 'matplotlib', 'pytest', 'hypothesis', 'nbformat'):\n"
        "    sys.modules[name] = None\n"
        f"import pa_tutorial.bench.gpu, pa_tutorial.bench.gpu_sanitize, {names}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
