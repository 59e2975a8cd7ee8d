"""The cases of a blank of notebook 10 in plain Python; those of kernels are in blank_cases.py."""

from functools import partial

from pa_tutorial.exercises.function_cases import size_trials

CASES = {"group_sizes": partial(size_trials, "group_sizes")}
EXERCISES = ()
