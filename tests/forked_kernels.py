"""Kernels for notebooks that start at once: forks of a process that has imported the libraries.

A notebook runs in a process of its own, as always. Only its imports of torch, Numba, matplotlib and
the package find them in memory, which saves each of twenty notebooks some seconds.

Run as a program, this is the process that forks: it reads one line of JSON for each kernel.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from functools import cache

from jupyter_client.provisioning import LocalProvisioner
from nbclient import NotebookClient

LIBRARIES = (
    "torch",
    "torch._dynamo",  # of transformers, of torch.distributed.tensor and of torch's counter
    "numba.cuda",
    "matplotlib.figure",
    "ipykernel.kernelapp",
    "IPython.display",
    "pa_tutorial.checks",
    "pa_tutorial.exercises",
)


class ForkedKernel:
    """What jupyter_client asks of a process. It is no child of this one, so nobody waits for it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.02)
        return 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forking(LocalProvisioner):
    """Starts a kernel by a fork."""

    async def launch_kernel(self, cmd: list[str], **options: object) -> dict:
        task = {
            "arguments": cmd[cmd.index("-f") :],
            "cwd": options.get("cwd") or os.getcwd(),
            "env": dict(options["env"]),
        }
        process = forking_process()
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        self.process = ForkedKernel(int(process.stdout.readline()))
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def client_type() -> type[NotebookClient]:
    """What runs a notebook: in a new kernel where a process cannot be forked (Windows), or not
    after its imports (macOS)."""
    return ForkingClient if sys.platform == "linux" else NotebookClient


class ForkingClient(NotebookClient):
    """Runs a notebook in a forked kernel."""

    def create_kernel_manager(self) -> object:
        manager = super().create_kernel_manager()
        spec = manager.kernel_spec
        manager.provisioner = Forking(kernel_id="", kernel_spec=spec, parent=manager)
        return manager


@cache
def forking_process() -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    atexit.register(process.stdin.close)  # its end
    return process


def fork_for_each_line() -> None:
    del sys.path[0]  # the folder of this file: no kernel has it
    # What a kernel's libraries read when they are imported.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # a kernel ends if this process does
    for library in LIBRARIES:
        __import__(library)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a kernel that has ended is gone at once
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            become_a_kernel(**json.loads(line))
        print(pid, flush=True)


def become_a_kernel(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()  # signals are for it and for what it starts
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.argv = ["ipykernel_launcher", *arguments]
    try:
        launch_new_instance()
    finally:
        os._exit(0)


if __name__ == "__main__":
    fork_for_each_line()
