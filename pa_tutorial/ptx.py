"""PTX without a GPU moved. This file says where to."""

raise ImportError("pa_tutorial.ptx is now simt.ptx, and its `original` pa_tutorial.bench.original")
