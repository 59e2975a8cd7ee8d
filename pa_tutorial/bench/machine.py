"""How a process ends that was started here, with all that it started itself."""

import contextlib
import os
import signal
import subprocess


def end_group(process: subprocess.Popen) -> None:
    """End a process that was started with start_new_session, and all that it started itself; on
    Windows, which has no sessions, the process alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
