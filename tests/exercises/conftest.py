"""What a notebook shows."""

import IPython
import pytest


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list:
    """What is displayed, as in a notebook."""
    shown: list[object] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: "a notebook")
    monkeypatch.setattr(IPython.display, "display", shown.append)
    return shown
