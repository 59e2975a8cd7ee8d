"""Jupyter kernels that start warm: each is a fork of a process that has imported what takes long.

To start a kernel and import torch and matplotlib takes 3 to 5 seconds, and there are 20 notebooks.
The process that is forked only imports, so each kernel begins as clean as any other.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping

import numba
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.manager import AsyncKernelManager

# Forking is safe where nothing that was imported has started a thread: on Linux.
HOW = "forkserver" if sys.platform == "linux" else "spawn"
IMPORTED = ["torch._dynamo", "numba", "IPython", "ipykernel.ipkernel", "matplotlib.pyplot"]


def serve(connection_file: str, environment: Mapping[str, str], folder: str) -> None:
    """What a kernel's process does."""
    os.environ.clear()
    os.environ.update(environment)
    numba.core.config.reload_config()  # from the environment
    os.chdir(folder)
    IPKernelApp.launch_instance(argv=["-f", connection_file])


class WarmKernel(AsyncKernelManager):
    """A running kernel. nbclient asks whether it is alive, and ends it."""

    has_kernel = True

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        super().__init__()
        self.write_connection_file()
        context = multiprocessing.get_context(HOW)
        context.set_forkserver_preload(IMPORTED)
        self.process = context.Process(
            target=serve, args=(self.connection_file, dict(environment), folder)
        )
        self.process.start()

    async def is_alive(self) -> bool:
        return self.process.is_alive()

    async def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:
        self.process.kill()
        self.process.join()
        self.cleanup_connection_file()
