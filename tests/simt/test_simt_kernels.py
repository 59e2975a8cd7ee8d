"""Kernels with known answers, with one fault, and random ones, in every order of warps."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from simt import SimtError, launch
from tests.simt.helpers import run
from tests.simt.kernels.example import EXAMPLES, FAULTS
from tests.simt.simt_programs import NUM_THREADS, arguments, run_thread_by_thread, write_program

ORDERS = (pytest.param("together", marks=pytest.mark.macos), "forward", "reverse", 7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_answer_is_right_and_no_check_cries_wolf(name: str, order: str | int) -> None:
    example = EXAMPLES[name]
    args = example.draw()
    assert run(example, *args, order=order).clean
    for position, expected in example.answer(*example.draw()).items():
        np.testing.assert_allclose(args[position], expected, rtol=example.rtol, atol=0)


# Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_check_finds_the_fault_at_the_right_line(name: str) -> None:
    fault = FAULTS[name]
    with pytest.raises(SimtError) as caught:
        run(fault)
    finding = caught.value.finding
    other = finding.other_site.code if finding.other_site else ""
    assert finding.check == fault.check, str(finding)
    assert "# FAULT" in finding.site.code, str(finding)
    assert ("# FIRST" in other) == ("# FIRST" in inspect.getsource(fault.kernel.py_func))


@pytest.mark.parametrize("order", ["forward", "reverse", 7])
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found_in_every_order_of_warps(name: str, order: str | int) -> None:
    fault = FAULTS[name]
    findings = run(fault, order=order, collect=True).findings
    lines = [line for f in findings if f.check == fault.check for line in (f.site, f.other_site)]
    assert any(site and "# FAULT" in site.code for site in lines), findings


# Divergence ----------------------------------------------------------------------------------

SEEDS = [pytest.param(range(n, n + 20), id=str(n)) for n in range(0, 300, 20)]
SEEDS += [
    pytest.param(range(n, n + 1000), id=str(n), marks=pytest.mark.hours)
    for n in range(300, 10_300, 1000)
]


@pytest.mark.rest(keep=["60", "160"])
@pytest.mark.parametrize("seeds", SEEDS)
def test_random_programs_run_as_in_plain_python(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        module = write_program(seed, tmp_path)
        out, table = arguments()
        order = "together" if seed % 3 else "reverse"
        assert launch(module.kernel, 1, NUM_THREADS, out, table, order=order).clean
        np.testing.assert_array_equal(out, run_thread_by_thread(module))
