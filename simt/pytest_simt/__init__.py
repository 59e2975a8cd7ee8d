"""For tests of Numba CUDA programs: a fixture and a marker.

pytest finds them by itself if numba-simt is installed; else, `pytest -p pytest_simt`. A test runs
without a GPU, with all checks, if it has the fixture `simulated_cuda` or the marker, which takes
launch's options:

    @pytest.mark.simulated_cuda(order="reverse")
    def test_blur(): ...

This is a package beside `simt`, because pytest imports it at every start. To import any part of
`simt` would import Numba, too.
"""

from collections.abc import Iterator

import pytest

NAME = "simulated_cuda"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{NAME}(**options): run CUDA kernels in the simulator")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(NAME):
            item.fixturenames.insert(0, NAME)


@pytest.fixture
def simulated_cuda(request: pytest.FixtureRequest) -> Iterator[None]:
    from simt.host import simulated

    marker = request.node.get_closest_marker(NAME)
    if marker and marker.args:
        given = f"{NAME}({', '.join(map(repr, marker.args))})"
        raise TypeError(f"the marker is {given}; it takes options by name, as in order='reverse'")
    with simulated(**(marker.kwargs if marker else {})):
        yield
