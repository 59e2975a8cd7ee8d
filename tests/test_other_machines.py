"""What holds on Windows, as far as Linux can tell."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Other packages may use these names, so they are imported before the names are removed.
WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys
import matplotlib.pyplot, nbclient, torch._dynamo
from transformers import LlamaForCausalLM, Qwen2ForCausalLM
import pa_tutorial

for name in ("fork", "setsid", "killpg", "getpgid", "sysconf", "sched_getaffinity", "getloadavg"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGALRM", "SIGUSR1", "pthread_kill", "setitimer"):
    vars(signal).pop(name, None)
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "triton"))
for module in pkgutil.walk_packages(pa_tutorial.__path__, "pa_tutorial."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if not (error.name.startswith("triton") and ".triton_" in module.name):
            raise
"""


def test_every_module_can_be_imported_without_posix_and_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_POSIX], cwd=ROOT, check=True)
