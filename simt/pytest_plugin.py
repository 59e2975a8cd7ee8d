"""For tests of Numba CUDA programs: a fixture and a marker. In conftest.py:

    pytest_plugins = ["simt.pytest_plugin"]

Then a test runs without a GPU, with all checks, if it has the fixture `simulated_cuda` or the
marker, which takes launch's options:

    @pytest.mark.simulated_cuda(order="reverse")
    def test_blur(): ...
"""

from collections.abc import Iterator

import pytest

from simt.host import simulated

NAME = "simulated_cuda"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{NAME}(**options): run CUDA kernels in the simulator")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(NAME):
            item.fixturenames.insert(0, NAME)


@pytest.fixture
def simulated_cuda(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker(NAME)
    with simulated(**(marker.kwargs if marker else {})):
        yield
