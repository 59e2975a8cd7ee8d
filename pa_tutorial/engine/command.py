"""What the commands that answer prompts have in common: options, backends, output."""

import argparse
from pathlib import Path

from pa_tutorial.arguments import require
from pa_tutorial.attention.backend import Backend
from pa_tutorial.engine.engine import StepStatistics
from pa_tutorial.engine.llm import LLM, Completion
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.engine.runner import KV_CACHE_DTYPES

BACKENDS = ("paged_gather", "paged_online", "cpu", "triton")
BACKENDS += ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2")


def backend_named(name: str) -> Backend:
    """One of BACKENDS. They are loaded here, because Numba and Triton take seconds."""
    from pa_tutorial.attention.paged import gather_backend, online_backend
    from pa_tutorial.kernels import cuda_backends
    from pa_tutorial.kernels.cpu.backend import cpu_backend
    from pa_tutorial.kernels.triton.backend import triton_backend

    return {
        "paged_gather": gather_backend,
        "paged_online": online_backend,
        "cpu": cpu_backend,
        "triton": triton_backend,
        "cuda_naive": cuda_backends.naive_backend,
        "cuda_v1": cuda_backends.v1_backend,
        "cuda_v1_vector": cuda_backends.v1_vector_backend,
        "cuda_v2": cuda_backends.v2_backend,
    }[name]


def make_parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("prompts", nargs="*", metavar="PROMPT", help="text; each prompt is a request")
    add("--file", type=Path, help="more prompts, one per line; empty lines are skipped")
    add(
        "--model",
        default="tiny",
        help="tiny (the default), tiny_llama, or a folder with a Llama or Qwen2 checkpoint",
    )

    engine = parser.add_argument_group("engine").add_argument
    engine("--backend", default="paged_online", choices=BACKENDS, help="(paged_online)")
    engine("--num-blocks", type=int, default=512, help="blocks in the pool (512)")
    engine("--block-size", type=int, default=16, help="tokens per block (16)")
    engine(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        help="store K and V in 8 bits: fp8 is fp8_e4m3 (default: in the model's type)",
    )
    engine("--token-budget", type=int, default=256, help="maximum tokens per step (256)")
    engine("--chunk-size", type=int, help="maximum tokens of one prompt per step (the budget)")
    engine("--max-num-seqs", type=int, default=64, help="maximum sequences running at once (64)")
    engine("--no-prefix-caching", action="store_true", help="don't reuse cached prefixes")
    engine("--every", type=int, default=0, help="steps between arrivals (0: all at once)")

    sampling = parser.add_argument_group("sampling").add_argument
    sampling("--max-tokens", type=int, default=32, help="maximum tokens per answer (32)")
    sampling("--temperature", type=float, default=0.0, help="0 picks the likeliest token (0)")
    sampling("--top-k", type=int, default=0, help="sample from the TOP_K likeliest tokens (0: all)")
    sampling("--top-p", type=float, default=1.0, help="sample from the top, up to this sum (1)")
    sampling("--seed", type=int, default=0, help="random seed (0)")
    sampling("--num-samples", type=int, default=1, help="answers per prompt (1)")
    sampling("--stop-token", type=int, action="append", default=[], help="id that ends an answer")
    sampling("--ignore-eos", action="store_true", help="continue after the model's end token")

    add("--statistics", action="store_true", help="print what each step did")
    add("--no-progress", action="store_true", help="don't show a progress bar")
    return parser


def show(completion: Completion) -> None:
    print(f"> {completion.prompt}")
    if completion.error is not None:
        print(f"  error: {completion.error}")
    answers = completion.texts if completion.texts is not None else completion.token_ids
    for answer, reason in zip(answers, completion.finish_reasons, strict=True):
        print(f"  {answer}   [{reason}]")


def show_statistics(steps: list[StepStatistics]) -> None:
    print("step  running  waiting  prefill  decode  blocks  cached  hit rate  preemptions")
    for s in steps:
        print(
            f"{s.step:4}  {s.num_running:7}  {s.num_waiting:7}  {s.num_prefill:7}  "
            f"{s.num_decode:6}  {s.blocks_used:6}  {s.blocks_cached:6}  {s.hit_rate:8.2f}  "
            f"{s.num_preemptions:11}" + (f"  {s.error}" if s.error else "")
        )


def prompts_of(args: argparse.Namespace) -> list[str]:
    """Those of the command line, then those of the file. ValueError if there are none."""
    require(args.every >= 0, "--every", args.every, "at least 0")
    lines = args.file.read_text(encoding="utf-8").splitlines() if args.file else []
    prompts = args.prompts + [line for line in lines if line]
    if not prompts:
        raise ValueError("no prompt: give text, or --file")
    return prompts


def engine_options(args: argparse.Namespace) -> dict[str, object]:
    names = ("num_blocks", "block_size", "token_budget", "chunk_size", "max_num_seqs")
    options = {name: getattr(args, name) for name in (*names, "kv_cache_dtype")}
    options["backend"] = backend_named(args.backend)
    return options | {"prefix_caching": not args.no_prefix_caching}


def answer(llm: LLM, args: argparse.Namespace, prompts: list[str]) -> int:
    """Print the answers, and statistics if they are wanted. Returns 1 if a request failed."""
    known = SamplingParams.__dataclass_fields__
    chosen = {name: value for name, value in vars(args).items() if name in known}
    params = SamplingParams(stop_tokens=tuple(args.stop_token), **chosen)
    arrivals = [args.every * index for index in range(len(prompts))]
    completions = llm.generate(prompts, params, arrivals, progress=not args.no_progress)
    for completion in completions:
        show(completion)
    if args.statistics:
        show_statistics(llm.statistics)
    return int(any(completion.error for completion in completions))
