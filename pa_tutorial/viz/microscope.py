"""The microscope moved. This file says where to."""

raise ImportError("pa_tutorial.viz.microscope is now simt.microscope")
