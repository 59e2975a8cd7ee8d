"""Jupyter kernels that start warm: each is a fork of a process that has imported what takes long.

To start a kernel and import torch and matplotlib takes 3 to 5 seconds, and there are 20 notebooks.
The process that is forked only imports, so each kernel begins as clean as any other.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import Any

import numba
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerBase

# Forking is safe where nothing that was imported has started a thread: on Linux.
HOW = "forkserver" if sys.platform == "linux" else "spawn"
IMPORTED = ["torch._dynamo", "numba", "IPython", "ipykernel.ipkernel", "matplotlib.pyplot"]


def serve(connection_file: str, environment: Mapping[str, str], folder: str) -> None:
    """What a kernel's process does."""
    os.environ.clear()
    os.environ.update(environment)
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # a kernel ends when its parent does
    numba.core.config.reload_config()  # from the environment
    gc.set_threshold(50_000)  # compiling makes millions of objects that stay
    os.chdir(folder)
    IPKernelApp.launch_instance(argv=["-f", connection_file])


class Process(KernelProvisionerBase):
    """A kernel's process, which runs already."""

    has_process = True

    def __init__(self, process: multiprocessing.Process, **traits: Any) -> None:
        super().__init__(**traits)
        self.process = process

    async def poll(self) -> int | None:
        return self.process.exitcode

    async def wait(self) -> int | None:
        while self.process.exitcode is None:
            await asyncio.sleep(0.05)
        return self.process.exitcode

    async def send_signal(self, signum: int) -> None:
        os.kill(self.process.pid, signum)

    async def kill(self, restart: bool = False) -> None:
        self.process.kill()

    async def terminate(self, restart: bool = False) -> None:
        self.process.terminate()

    async def launch_kernel(self, cmd: list[str], **more: Any) -> dict:
        raise RuntimeError("a notebook's kernel isn't started again")

    async def cleanup(self, restart: bool = False) -> None:
        pass


def start_kernel(environment: Mapping[str, str], folder: str) -> AsyncKernelManager:
    """A kernel in a process of its own."""
    kernel = AsyncKernelManager()
    kernel.write_connection_file()
    context = multiprocessing.get_context(HOW)
    context.set_forkserver_preload(IMPORTED)
    arguments = kernel.connection_file, dict(environment), folder
    process = context.Process(target=serve, args=arguments)
    process.start()
    kernel.provisioner = Process(process)
    return kernel
