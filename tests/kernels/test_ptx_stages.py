"""The CUDA stages, checked as Numba compiles them: free hosted notebooks' cards and later ones."""

import pytest

from pa_tutorial.checks import check
from pa_tutorial.checks.ladder import STAGES

STAGES_IN_CUDA = [name for name in STAGES if name.startswith("cuda_")]

pytestmark = pytest.mark.needs("numba-cuda")


@pytest.mark.rest("test_ptx_kernels.py: one kernel and one case")
@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (12, 0)], ids="{0[0]}.{0[1]}".format)
@pytest.mark.parametrize("name", STAGES_IN_CUDA)
def test_a_stage_passes_its_short_check_as_compiled(name: str, capability: tuple[int, int]) -> None:
    check(name, short=True, compiled=capability)


@pytest.mark.rest("test_ptx_kernels.py: one kernel and one case")
@pytest.mark.parametrize("name", STAGES_IN_CUDA)
def test_a_stage_passes_every_case_as_compiled(name: str) -> None:
    check(name, compiled=True)


@pytest.mark.parametrize(
    ("capability", "error", "what"),
    [
        (90, TypeError, "compiled is of type int"),
        ((9,), ValueError, r"compiled is \(9,\); it must be two whole numbers"),
        ((6, 1), ValueError, r"compiled is \(6, 1\); it must be \(7, 5\) or newer"),
        ((99, 0), ValueError, r"compiled: .* the compiler doesn't know; the nearest is"),
    ],
)
def test_what_is_not_a_compute_capability_is_refused(
    capability: object, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        check("cuda_naive", short=True, compiled=capability)
