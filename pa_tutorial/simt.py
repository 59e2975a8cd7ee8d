"""The simulator moved. This file says where to."""

raise ImportError(
    "pa_tutorial.simt is a package of its own now: `from simt import …`, `python -m simt`"
)
