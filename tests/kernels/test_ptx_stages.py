"""The CUDA stages, checked as Numba compiles them: free hosted notebooks' cards and later ones."""

import pytest

from pa_tutorial.checks import check
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of, compare
from pa_tutorial.checks.ladder import STAGES, backend_named
from pa_tutorial.kernels.compiled.backend import Compiled
from simt import Trace
from simt.traffic import costs

pytestmark = pytest.mark.needs("numba-cuda")
by_stage = pytest.mark.parametrize("name", [name for name in STAGES if name.startswith("cuda_")])


@pytest.mark.rest("the next test, on one case")
@pytest.mark.parametrize("capability", [True, (7, 5), (9, 0), (12, 0)], ids=str)
@by_stage
def test_a_stage_is_right_as_compiled(name: str, capability: bool | tuple[int, int]) -> None:
    """In every case, where no capability is asked for; in the short check of others."""
    check(name, short=capability is not True, compiled=capability)


def global_cost(trace: Trace) -> dict[str, tuple[int, int]]:
    """(transactions, sectors) of each array in global memory."""
    found = {}
    for array in {array.name for array in trace.arrays if array.space == "global"}:
        part = trace.only(array=array)
        found[array] = part.num_instructions, int(costs(part)["sectors"].sum())
    return {array: cost for array, cost in found.items() if cost[0]}


@pytest.mark.rest(keep=["cuda_v2-one_full_block"])
@pytest.mark.parametrize("case", ["gqa", "bfloat16", "head_size_120_float16", "one_full_block"])
@by_stage
def test_the_compiled_kernel_computes_and_moves_what_the_simulated_one_does(
    name: str, case: str
) -> None:
    """In the last case v2 has sequences of one full partition and of several."""
    problem = CASES[f"decode/{case}"]
    step, sizes = problem.paged("vllm"), STAGES[name].sizes(problem)
    compiled = Compiled(backend_named(name)).prepare(step, **sizes)
    found = compiled.probe()
    promised = {"qk", "out"} | (set() if name == "cuda_naive" else {"qk_max", "exp_sum", "logits"})
    assert found.keys() - {"accs"} == promised
    for one in compare(found, {"the oracle": problem.expected()}, bounds_of(problem.id)):
        assert one.passed, one
    reports = backend_named(name).prepare(step, **sizes).simulate(trace="all", checks=())
    reports = reports if isinstance(reports, tuple) else (reports,)
    for ours, theirs in zip(compiled.reports, reports, strict=True):
        of_ours, of_theirs = (global_cost(one.trace) for one in (ours, theirs))
        # A number of a head may be loaded where it is used, in the warps that use it.
        slopes = of_ours.pop("alibi_slopes", (0, 0)), of_theirs.pop("alibi_slopes", (0, 0))
        assert slopes[0] <= slopes[1]
        assert of_ours == of_theirs
        assert ours.issued["barrier"] == theirs.trace.only(kind="barrier").num_instructions


@pytest.mark.parametrize(("capability", "error"), [(90, TypeError), ((6, 1), ValueError)])
def test_what_is_not_a_compute_capability_is_refused(
    capability: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^compiled"):
        check("cuda_naive", short=True, compiled=capability)
