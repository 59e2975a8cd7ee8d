"""The stages and their cases moved. This file says where to."""

raise ImportError(
    "pa_tutorial.walk is now in pa_tutorial.checks: `from pa_tutorial.checks.ladder import STAGES`"
)
