"""Counts beside Nsight Compute's: a small program stands in for `ncu`, and for the GPU."""

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import absent
import numba
import numpy as np
import pytest

from pa_tutorial.bench import gpu_traffic
from pa_tutorial.bench.gpu_traffic import METRICS, Counts, predicted, recorded

NOISE = ["==PROF== Connected to process 7", "said by the program, not by ncu"]
UNITS = ["", "", *["request"] * len(METRICS)]


def compare(seconds: float = 60) -> dict[str, object]:
    return gpu_traffic.compare(seconds)


# The kernels whose counts depend on the rule of wide shared accesses.
WIDE, FOUR_LANES = "shared_vectors_of_two_rows", "shared_vectors_for_four_lanes"


def mangled(name: str) -> str:
    return f"_ZN12simt_kernels7traffic{len(name)}{name}B2v1E, Array<float, 1>"


def csv_of(counts: dict[str, Counts]) -> list[str]:
    """What ncu prints. There are thousands separators, and commas in names."""
    rows = [["ID", "Kernel Name", *METRICS.values()], UNITS]
    for number, (name, of_kernel) in enumerate(counts.items()):
        cells = ["n/a" if count is None else f"{count:,}" for count in of_kernel.values()]
        rows.append([str(number), mangled(name), *cells])
    return [",".join(f'"{cell}"' for cell in row) for row in rows]


class StandIn:
    """An `ncu` that prints the same, whatever it is told to run; keeps its arguments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, folder / "ncu"
        monkeypatch.setenv("PATH", str(folder))

    def prints(self, lines: list[str], errors: str = "", code: int = 0, seconds: int = 0) -> None:
        told = self.folder / "told.json"
        said = "\n".join(lines)
        self.path.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys, time\n"
            f"told = {{'arguments': sys.argv[1:], 'folder': os.getcwd(), **os.environ}}\n"
            f"json.dump(told, open({str(told)!r}, 'w'))\n"
            f"time.sleep({seconds})\n"
            f"print({said!r})\n"
            f"print({errors!r}, file=sys.stderr)\n"
            f"sys.exit({code})\n",
            encoding="utf-8",
        )
        self.path.chmod(0o755)

    def counts(self, counts: dict[str, Counts]) -> None:
        self.prints(NOISE + csv_of(counts))

    @property
    def told(self) -> dict:
        return json.loads((self.folder / "told.json").read_text(encoding="utf-8"))


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    absent.require("POSIX")
    monkeypatch.setattr(gpu_traffic, "PLACES", ())
    return StandIn(tmp_path, monkeypatch)


def by_rule(rule: str = "at once") -> dict[str, Counts]:
    return {name: predicted(accesses, rule) for name, accesses in recorded().items()}


def test_predicted_are_the_sums_of_what_was_worked_out_by_hand() -> None:
    counts = by_rule()
    assert counts["stride_2"] == dict.fromkeys(METRICS, 0) | {
        "global read requests": 1,
        "global read sectors": 8,
        "global write requests": 1,
        "global write sectors": 4,
    }
    assert counts["transpose_without_padding"] == {
        "global read requests": 32,
        "global write requests": 32,
        "global read sectors": 128,
        "global write sectors": 128,
        "shared read wavefronts": 1024,
        "shared write wavefronts": 32,
        "shared read conflicts": 1024 - 32,
        "shared write conflicts": 0,
    }
    assert counts["one_word_for_many_lanes"]["shared read wavefronts"] == 2, "of two expressions"


def test_predicted_by_each_rule() -> None:
    at_once, in_parts = by_rule("at once"), by_rule("in parts")
    vectors = at_once["vectors_of_4_8_and_16_bytes"]
    assert (vectors["global read requests"], vectors["global read sectors"]) == (3, 4 + 8 + 16)
    assert [name for name in at_once if at_once[name] != in_parts[name]] == [
        WIDE,
        FOUR_LANES,
    ]
    numbers = [
        [counts[WIDE][f"shared {counter}"] for counter in ("read wavefronts", "read conflicts")]
        for counts in (at_once, in_parts)
    ]
    assert numbers == [[2, 1], [4, 2]]


def test_equal_counters(ncu: StandIn, capsys: pytest.CaptureFixture) -> None:
    ncu.counts(by_rule())
    result = compare()
    assert result["equal"] == len(recorded()) >= 12
    assert result["different"] == []
    assert result["kernels"]["stride_2"] == {
        "global read requests": 1,
        "global read sectors": 8,
        "global write requests": 1,
        "global write sectors": 4,
    }
    assert result["kernels"]["transpose_without_padding"]["shared read wavefronts"] == 1024
    assert f"{len(recorded())} kernels: equal counters; 0 differ" in capsys.readouterr().out
    json.dumps(result)


def test_ncu_is_told_to_count_what_this_module_launches(ncu: StandIn) -> None:
    ncu.counts(by_rule())
    compare()
    arguments = ncu.told["arguments"]
    assert arguments[-3:] == [sys.executable, "-m", "pa_tutorial.bench.gpu_traffic"]
    assert arguments[arguments.index("--metrics") + 1].split(",") == list(METRICS.values())
    assert Path(ncu.told["folder"], "pa_tutorial").is_dir(), "else python -m does not find it"
    assert ncu.told["LC_ALL"] == "C"


def test_one_counter_that_differs_names_its_kernel(ncu: StandIn, capsys) -> None:
    counts = by_rule()
    counts["stride_32"]["global read sectors"] += 1
    ncu.counts(counts)
    result = compare()
    assert result["different"] == ["stride_32"]
    assert result["equal"] == len(recorded()) - 1
    assert result["kernels"]["stride_32"]["global read sectors"] == {"simulator": 32, "gpu": 33}
    out = capsys.readouterr().out
    assert "stride_32, global read sectors: simulator 32, gpu 33" in out
    assert "1 differ" in out


def test_a_kernel_that_differs_twice_is_named_once(ncu: StandIn) -> None:
    counts = by_rule()
    counts["stride_32"] |= {"global read sectors": 0, "shared read wavefronts": 5}
    ncu.counts(counts)
    result = compare()
    assert result["different"] == ["stride_32"]
    assert result["kernels"]["stride_32"] == {
        "global read requests": 1,
        "global read sectors": {"simulator": 32, "gpu": 0},
        "global write requests": 1,
        "global write sectors": 4,
        "shared read wavefronts": {"simulator": 0, "gpu": 5},
    }


def test_numbers_with_a_fraction_are_read_too(ncu: StandIn) -> None:
    lines = csv_of(by_rule())
    ncu.prints([line.replace('"1,024"', '"1,024.00"') for line in lines])
    assert compare()["different"] == []


def test_a_counter_that_the_gpu_does_not_have_is_a_difference(ncu: StandIn, capsys) -> None:
    counts = by_rule()
    counts["stride_1"]["global write requests"] = None
    ncu.counts(counts)
    result = compare()
    assert result["different"] == ["stride_1"]
    assert result["kernels"]["stride_1"]["global write requests"] == {"simulator": 1, "gpu": None}
    assert "simulator 1, gpu has no such counter" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["at once", "in parts"])
def test_the_rule_that_the_gpu_follows_is_named(ncu: StandIn, capsys, rule: str) -> None:
    counts = by_rule(rule)
    ncu.counts(counts)
    result = compare()
    assert result["different"] == []
    assert result["kernels"][WIDE]["shared read wavefronts"] == {
        "at once": 2,
        "in parts": 4,
        "gpu": counts[WIDE]["shared read wavefronts"],
    }
    assert result["rule_of_wide_shared_accesses"] == {
        WIDE: {"shared read wavefronts": rule, "shared read conflicts": rule},
        FOUR_LANES: {"shared read wavefronts": rule},
    }
    assert f"the GPU's rule of wide accesses is: {rule}" in capsys.readouterr().out


def test_a_gpu_with_another_rule_differs(ncu: StandIn) -> None:
    counts = by_rule()
    counts[WIDE]["shared read wavefronts"] = 3
    ncu.counts(counts)
    result = compare()
    assert result["different"] == [WIDE]
    agreed = {"shared read wavefronts": "neither", "shared read conflicts": "at once"}
    assert result["rule_of_wide_shared_accesses"][WIDE] == agreed


# Where nothing can be counted ------------------------------------------------------------------


def test_ncu_that_may_not_read_counters(ncu: StandIn, capsys) -> None:
    complaint = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    for code in (0, 1):
        ncu.prints([*NOISE, complaint, "==WARNING== No kernels were profiled."], code=code)
        result = compare()
        assert result.keys() == {"not_compared"}
        assert complaint in result["not_compared"]
        assert f"ended with {code}" in result["not_compared"]
    assert f"Not compared: {ncu.path}" in capsys.readouterr().out


def test_a_program_that_fails_is_quoted(ncu: StandIn) -> None:
    error = "==ERROR== The application returned an error code (1)."
    ncu.prints([error, *NOISE, *NOISE], errors="CudaSupportError: no driver\n:", code=1)
    why = compare()["not_compared"]
    assert error in why
    assert why.endswith("CudaSupportError: no driver :"), "the program's own words"


def test_counters_of_a_run_that_failed_are_not_believed(ncu: StandIn) -> None:
    ncu.prints(csv_of(by_rule()), errors="out of memory", code=9)
    assert "ended with 9" in compare()["not_compared"]


def test_ncu_that_does_not_end(ncu: StandIn) -> None:
    ncu.prints([], seconds=5)
    assert "not done after 0.5 seconds" in compare(seconds=0.5)["not_compared"]


def test_no_ncu(ncu: StandIn, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(gpu_traffic, "PLACES", ("/nowhere/cuda*/ncu",))
    why = "there is no ncu on PATH, nor at /nowhere/cuda*/ncu"
    assert compare() == {"not_compared": why}
    assert why in capsys.readouterr().out


def test_the_newest_ncu_is_taken_where_path_has_none(ncu: StandIn, monkeypatch) -> None:
    places = [ncu.folder / f"nsight-compute/{version}/ncu" for version in ("2025.9.1", "2025.10.0")]
    for place in [*places, ncu.folder / "nsight-compute/2026.1.0/ncu"]:
        place.parent.mkdir(parents=True)
        place.touch()
    for place in places:
        place.chmod(0o755)  # the third is no program
    everywhere = (str(ncu.folder / "cuda*/bin/ncu"), str(ncu.folder / "nsight-compute/*/ncu"))
    monkeypatch.setattr(gpu_traffic, "PLACES", everywhere)
    assert gpu_traffic.find_ncu() == str(places[1])
    ncu.prints([])
    assert gpu_traffic.find_ncu() == str(ncu.path)


def test_too_few_launches(ncu: StandIn) -> None:
    counts = by_rule()
    counts.popitem()
    ncu.counts(counts)
    number = len(recorded())
    assert compare() == {"not_compared": f"ncu has {number - 1} launches; there must be {number}"}


def test_launches_in_another_order(ncu: StandIn) -> None:
    counts = by_rule()
    ncu.counts(dict(reversed(counts.items())))
    assert compare()["not_compared"].endswith(f"it must be {next(iter(counts))}")


# The program that ncu starts -------------------------------------------------------------------


class Device:
    """In place of numba.cuda: notes what is asked of it, of kernels too."""

    def __init__(self) -> None:
        self.asked = []

    def to_device(self, array: np.ndarray) -> tuple[str, int]:
        return "on the device", array.size

    def synchronize(self) -> None:
        self.asked.append("synchronize")


@dataclass
class Kernel:
    name: str
    device: Device

    def __getitem__(self, size: tuple) -> Callable:
        return lambda *args: self.device.asked.append((self.name, size, args))


def test_run_as_a_program_it_launches_all_with_arrays_on_the_device(monkeypatch) -> None:
    device = Device()
    monkeypatch.setattr(numba, "cuda", device)
    examples = gpu_traffic.examples()
    for name in recorded():
        stand_in = replace(examples[name], kernel=Kernel(name, device))
        monkeypatch.setitem(examples, name, stand_in)
    monkeypatch.delitem(sys.modules, gpu_traffic.__name__)
    runpy.run_module(gpu_traffic.__name__, run_name="__main__")
    launched, waited = device.asked[::2], device.asked[1::2]
    assert [name for name, _, _ in launched] == list(recorded())
    assert set(waited) == {"synchronize"}
    arrays = ("on the device", 64), ("on the device", 64)
    assert launched[list(recorded()).index("broadcast")] == ("broadcast", (1, 64, 0, 0), arrays)
