"""Read by the kernels of the environment where the walk is installed, from its etc/ipython/.

JupyterLab writes what a kernel says of its language into the notebook, and marks the notebook as
unsaved if that is new. Only Python's version differs between readers, so here it is just 3.
"""

from ipykernel.ipkernel import IPythonKernel

IPythonKernel.language_info["version"] = "3"
