"""Kernels with one fault each: the check that should find it does, and names the line."""

import inspect

import pytest
from simt_kernels.example import FAULTS, Fault

from pa_tutorial.simt import CHECKS, Finding, Report, SimtError, launch


def run(fault: Fault, **options: object) -> Report:
    args = fault.draw()
    return launch(
        fault.kernel, fault.grid, fault.block, *args, shared_bytes=fault.shared_bytes, **options
    )


def caught(fault: Fault, **options: object) -> Finding:
    with pytest.raises(SimtError) as caught:
        run(fault, **options)
    return caught.value.finding


def quoted_marks(finding: Finding) -> tuple[bool, bool]:
    """Do the lines that a finding names carry # FAULT and # FIRST?"""
    other = finding.other_site.code if finding.other_site else ""
    return "# FAULT" in finding.site.code, "# FIRST" in other


def has_first(fault: Fault) -> bool:
    return "# FIRST" in inspect.getsource(fault.kernel.py_func)


def test_there_are_enough_faults_of_every_kind() -> None:
    counts = {check: sum(f.check == check for f in FAULTS.values()) for check in CHECKS}
    assert len(FAULTS) >= 40
    assert min(counts.values()) >= 10, counts


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_check_finds_the_fault_at_the_right_line(name: str) -> None:
    fault = FAULTS[name]
    finding = caught(fault)
    assert finding.check == fault.check, str(finding)
    assert quoted_marks(finding) == (True, has_first(fault)), str(finding)


@pytest.mark.parametrize("order", ["forward", "reverse", 7])
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found_in_every_order_of_warps(name: str, order: str | int) -> None:
    fault = FAULTS[name]
    findings = run(fault, order=order, collect=True).findings
    lines = [line for f in findings if f.check == fault.check for line in (f.site, f.other_site)]
    assert any(site and "# FAULT" in site.code for site in lines), findings


@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if f.check != "memory"])
def test_a_check_that_is_off_finds_nothing(name: str) -> None:
    fault = FAULTS[name]
    other_checks = [check for check in CHECKS if check != fault.check]
    findings = run(fault, checks=other_checks, collect=True).findings
    assert fault.check not in {finding.check for finding in findings}
