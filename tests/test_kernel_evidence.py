"""What the compiler says is recorded, and the record is what it says."""

from collections.abc import Callable

import absent
import pytest

from pa_tutorial.kernels import evidence
from pa_tutorial.kernels.naive import naive_kernel

same_compiler = pytest.mark.skipif(
    not evidence.is_asked(),
    reason=absent.reason("numba-cuda")
    or f"another compiler is installed than that of evidence.json: {evidence.installed()}",
)


@same_compiler
@pytest.mark.parametrize("kernel", evidence.SMALL, ids=evidence._name)
def test_the_recorded_assembly_is_what_the_compiler_says(kernel: Callable) -> None:
    """Of the rows: test_kernel_comparison, which has them compiled."""
    recorded = evidence.recorded()["assembly"][kernel.py_func.__name__]
    assert recorded == evidence.assembly(kernel), "run `make refresh`"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler."""

    def fail(*arguments: object) -> None:
        raise AssertionError("there is no compiler to ask")

    monkeypatch.setattr(evidence, "installed", lambda: dict.fromkeys(evidence.COMPILER))
    monkeypatch.setattr(evidence, "ptx", fail)
    monkeypatch.setattr(evidence, "comparison", fail)


@pytest.mark.usefixtures("elsewhere")
def test_without_the_compiler_the_record_is_shown() -> None:
    assert "installed here: no compiler" in evidence.origin()
    for kernel in evidence.SMALL:
        assert evidence.assembly(kernel) == evidence.recorded()["assembly"][kernel.py_func.__name__]
    assert [row.name for row in evidence.rows()][-1] == "CUDA C++"
    assert all(isinstance(width, int) for row in evidence.rows() for width in row.global_loads)


@pytest.mark.parametrize("name", evidence.COMPILER)
def test_another_version_of_any_part_is_another_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "installed", lambda: evidence.recorded()["compiler"])
    assert evidence.is_asked()
    assert evidence.origin().startswith("compiled on this machine with numba-cuda")
    other = {**evidence.recorded()["compiler"], name: "0.0"}
    monkeypatch.setattr(evidence, "installed", lambda: other)
    assert not evidence.is_asked()
    assert evidence.origin().startswith("as recorded with numba-cuda")


def test_a_kernel_that_is_not_recorded() -> None:
    with pytest.raises(KeyError, match="naive_kernel is not recorded; these are: copy_elements"):
        evidence.assembly(naive_kernel(evidence.GEOMETRY))


def test_parameters_have_their_names_in_python() -> None:
    signed = evidence.recorded()["assembly"]["signed_index"]
    assert "ld.param.u64 %rd4, [a.shape];" in signed  # as the text of notebook 11 says
    assert "ld.param.u64 %rd3, [a.data];\n" in signed
    assert "cvta.to.global.u64 %rd6, %rd3;" in signed
    unsigned = evidence.recorded()["assembly"]["unsigned_index"]
    assert "ld.param.u64 %rd2, [a.data];\n" in unsigned
    assert "cvta.to.global.u64 %rd4, %rd2;" in unsigned
    assert "ld.param.u32 %r2, [n];" in evidence.recorded()["assembly"]["signed_warp"]
    assert "_param_" not in "".join(evidence.recorded()["assembly"].values())
