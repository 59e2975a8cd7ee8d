"""Where there is no Triton everything else works, and what does not run says why.

These tests are not part of the stage: they run on every machine.
"""

import subprocess
import sys

import pytest

from pa_tutorial.kernels.triton import backend
from pa_tutorial.kernels.triton.backend import paged_attention_triton, why_absent
from tests.kernels.kernel_inputs import step

pytestmark = pytest.mark.rest
WHY = {
    "linux": r"Triton isn't installed; in a clone, run python -m pip install -e '.[triton]'",
    "darwin": "Triton has wheels for Linux only, and this is darwin",
    "win32": "Triton has wheels for Linux only, and this is win32",
}


@pytest.mark.parametrize("platform", WHY)
def test_the_reason_names_the_platform_or_what_to_install(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", platform)
    assert why_absent() == WHY[platform]
    with pytest.raises(ImportError) as of_kernel:
        paged_attention_triton(**step())
    assert str(of_kernel.value) == f"the Triton kernels cannot run here: {WHY[platform]}"


def test_the_command_line_says_what_was_not_run_and_exits_with_1_if_it_was_asked_for() -> None:
    """An import of Triton fails there, and find_spec finds none."""
    without = "import runpy, sys; sys.modules['triton'] = None; sys.argv = ['checks', 'triton']; "
    program = without + "runpy.run_module('pa_tutorial.checks', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("triton: not run. Triton "), done.stdout
    assert done.stdout.strip().endswith(("[triton]'", sys.platform)), done.stdout
