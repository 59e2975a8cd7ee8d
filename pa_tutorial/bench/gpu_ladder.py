"""The paged kernels on a GPU: every case of their stages, with CUDA tensors.

Each stage runs through its public function. It is judged as `check` does, against the oracle and
against the stages before it; those with a kernel run on the GPU too.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from pa_tutorial.bench.process_pool import WORKERS, run_in_pool
from pa_tutorial.checks.running import Trial, judge, stage_trial
from pa_tutorial.walk.calls import Function
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES, Stage
from pa_tutorial.walk.problem import DecodeProblem

KERNELS = ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2", "triton")


def kernels_here() -> tuple[str, ...]:
    """Those that can run on this machine."""
    return tuple(name for name in KERNELS if STAGES[name].why_absent() is None)


def moved(tensor: Tensor, device: str) -> Tensor:
    """A copy on the device with the same strides: also of a view with gaps."""
    memory = tensor.new_empty(0).set_(tensor.untyped_storage()).to(device, copy=True)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def on_device(function: Function, device: str) -> Function:
    """The function for tensors on the CPU: they are copied there, and its result back.

    It takes what the function takes, but no probe: nobody can look into a kernel on a GPU.
    """

    def decode(*arguments: object, **options: object) -> Tensor:
        there = [moved(g, device) if isinstance(g, Tensor) else g for g in arguments]
        return function(*there, **options).cpu()

    signature = inspect.signature(function)
    taken = [p for p in signature.parameters.values() if p.name != "probe"]
    decode.__signature__ = signature.replace(parameters=taken)
    return decode


def trial_on(device: str, stage: Stage, case_id: str) -> Trial:
    """One case of a stage whose function is given by on_device."""

    def run_before(name: str) -> dict[str, Tensor]:
        function = STAGES[name].function
        there = on_device(function, device) if name in KERNELS else None
        return STAGES[name].run(CASES[case_id], there)

    before = {name: partial(run_before, name) for name in stage.checked_against}
    oracle = {"the oracle": CASES[case_id].expected}
    return replace(stage_trial(stage, case_id), references=oracle | before)


def wrong_in(cases: tuple[str, ...], device: str = "cuda") -> dict[str, dict[str, str]]:
    """stage -> case -> what is wrong there; nothing for what is right."""
    found: dict[str, dict[str, str]] = {name: {} for name in kernels_here()}
    for name in found:
        stage = STAGES[name]
        for case_id in cases:
            function = on_device(stage.function, device)
            case, _ = judge(trial_on(device, stage, case_id), function)
            if not case.passed:
                found[name][case_id] = case.diagnosis
    return found


def of_one_kernel(problem: DecodeProblem) -> tuple:
    """Cases for which this is equal have the same kernels, but for the partitions."""
    ratio = problem.num_heads // problem.num_kv_heads
    return problem.head_size, problem.block_size, problem.dtype, ratio


def shares(most: int = 4) -> list[tuple[str, ...]]:
    """The cases in groups of at most so many, whose kernels are compiled once a group."""
    by_kernel: dict[tuple, list[str]] = {}
    for case in CASES.values():
        if STAGES["cuda_v1"].is_checked_on(case):
            by_kernel.setdefault(of_one_kernel(case), []).append(case.id)
    groups = [
        tuple(ids[i : i + most]) for ids in by_kernel.values() for i in range(0, len(ids), most)
    ]
    return sorted(groups, key=len, reverse=True)


def compare(
    seconds: float,
    workers: int = WORKERS,
    work: Callable[[tuple[str, ...]], dict[str, dict[str, str]]] = wrong_in,
) -> dict[str, object]:
    """Every case of every stage; prints what is wrong.

    returns  stage -> {"passed": how many, "different": case -> why}, or {"not_run": why};
             "wrong" and "left_out"
    """
    groups, here = shares(), kernels_here()
    done = run_in_pool(work, groups, workers, seconds)
    passed = dict.fromkeys(here, 0)
    different: dict[str, dict[str, str]] = {name: {} for name in here}
    for place, found in done.results.items():
        for name in here:
            different[name] |= found[name]
            passed[name] += len(groups[place]) - len(found[name])
    for name in here:
        total = passed[name] + len(different[name])
        print(f"{name}: {passed[name]} of {total} cases pass")
        for case_id, why in different[name].items():
            print(f"  {case_id}: {why.splitlines()[0]}")
    failed = {" ".join(groups[place]): why for place, why in done.failed.items()}
    for names, why in failed.items():
        print(f"not judged, {names}: {why}")
    left_out = [case_id for place in done.left_out for case_id in groups[place]]
    if left_out:
        print(f"left out, no time: {len(left_out)} cases: {' '.join(left_out)}")
    wrong = [f"{name} {case_id}" for name in here for case_id in different[name]]
    stages = {n: {"passed": passed[n], "different": different[n]} for n in here}
    for name in KERNELS:
        if why := STAGES[name].why_absent():
            print(f"{name}: not run: {why}")
            stages[name] = {"not_run": why}
    return stages | {"failed": failed, "left_out": left_out, "wrong": [*wrong, *failed]}
