"""The whole engine in one picture: from a request to the kernel and back."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pa_tutorial.viz import style

ENGINE = "pa_tutorial.engine."
PAGING = "pa_tutorial.paging."


@dataclass(frozen=True)
class Part:
    """One box.

    name   as it is called; `where` finds it
    where  module and attributes, to be imported
    does   in a few words
    vllm   the same thing in vLLM (version 0), or ""
    place  column, row
    """

    name: str
    where: str
    does: str
    vllm: str
    place: tuple[int, float]


REQUEST, SCHEDULE, COMPUTE = 0, 1, 2
PARTS = (
    Part("LLM.generate", f"{ENGINE}llm.LLM.generate", "prompts in, completions out",
         "LLM.generate", (REQUEST, 0)),
    Part("Engine.add", f"{ENGINE}engine.Engine.add", "refuses bad requests",
         "LLMEngine.add_request", (REQUEST, 1)),
    Part("Engine.step", f"{ENGINE}engine.Engine.step", "schedule, compute, choose",
         "LLMEngine.step", (REQUEST, 2)),
    Part("choose_token", f"{ENGINE}sampling.choose_token", "scores to the next token",
         "Sampler.forward", (REQUEST, 5)),
    Part("Scheduler.schedule", f"{ENGINE}scheduler.Scheduler.schedule", "who computes what",
         "Scheduler.schedule", (SCHEDULE, 0)),
    Part("can_schedule", f"{ENGINE}scheduler.Scheduler.can_schedule", "now or later",
         "BlockManager.can_allocate", (SCHEDULE, 1)),
    Part("BlockTable.append", f"{PAGING}block_table.BlockTable.append", "slots for new tokens",
         "BlockTable.append_token_ids", (SCHEDULE, 2)),
    Part("PrefixCachingAllocator", f"{PAGING}prefix_cache.PrefixCachingAllocator",
         "blocks, free or found again", "PrefixCachingBlockAllocator", (SCHEDULE, 3)),
    Part("Scheduler.preempt", f"{ENGINE}scheduler.Scheduler.preempt", "the youngest waits",
         "Scheduler._preempt", (SCHEDULE, 4)),
    Part("Scheduler.finish", f"{ENGINE}scheduler.Scheduler.finish", "blocks come back",
         "Scheduler.free_seq", (SCHEDULE, 5)),
    Part("build_batch", f"{ENGINE}batch.build_batch", "the step as tensors",
         "ModelInputForCPUBuilder.build", (COMPUTE, 0)),
    Part("Runner.run", f"{ENGINE}runner.Runner.run", "copies blocks, runs the model",
         "CPUModelRunner.execute_model", (COMPUTE, 1)),
    Part("Llama.run", f"{ENGINE}model.Llama.run", "every layer: q, k, v",
         "Qwen2ForCausalLM.forward", (COMPUTE, 2)),
    Part("PagedKVCache.write", f"{PAGING}kv_cache.PagedKVCache.write", "K and V into their slots",
         "reshape_and_cache", (COMPUTE, 3)),
    Part("Runner.attention", f"{ENGINE}runner.Runner.attention", "prefill, sequence by sequence",
         "Attention.forward", (COMPUTE, 4)),
    Part("a stage of the ladder", "pa_tutorial.walk.ladder.STAGES", "decode, all in one call",
         "paged_attention_v1, v2", (COMPUTE, 5)),
)  # fmt: skip

# from, to, what goes along
ARROWS = (
    ("LLM.generate", "Engine.add", "token ids"),
    ("Engine.add", "Engine.step", ""),
    ("Engine.step", "Scheduler.schedule", ""),
    ("Scheduler.schedule", "can_schedule", ""),
    ("can_schedule", "BlockTable.append", ""),
    ("BlockTable.append", "PrefixCachingAllocator", ""),
    ("Scheduler.schedule", "build_batch", "slots,\ntables"),
    ("build_batch", "Runner.run", ""),
    ("Runner.run", "Llama.run", ""),
    ("Llama.run", "PagedKVCache.write", ""),
    ("PagedKVCache.write", "Runner.attention", ""),
    ("Runner.attention", "a stage of the ladder", ""),
    ("PrefixCachingAllocator", "Scheduler.preempt", "none free"),
    ("choose_token", "Scheduler.finish", "ended"),
    ("choose_token", "Engine.step", "next step"),
)
WIDTH, HEIGHT = 2.25, 0.78
STEP_X, STEP_Y = 2.85, 1.02
HEADINGS = ("requests", "who may compute: whole numbers", "what is computed: tensors")


@style.styled
def draw_architecture() -> Figure:
    """Boxes are our functions, with vLLM's below; arrows say who calls or feeds whom."""
    figure, axes = style.new_figure(
        "One step: the scheduler gives blocks to sequences, the runner computes, a token is chosen",
        5.9,
    )
    style.bare(axes, 2 * STEP_X + WIDTH + 0.05, 5 * STEP_Y + HEIGHT + 0.85)
    for column, heading in enumerate(HEADINGS):
        x = column * STEP_X + WIDTH / 2
        axes.text(x, 0.15, heading, ha="center", va="center", color=style.QUIET)
    corners = {part.name: corner(part) for part in PARTS}
    for part in PARTS:
        _draw_part(axes, part)
    for start, end, text in ARROWS:
        _draw_arrow(axes, corners[start], corners[end], text)
    _draw_scores(axes, corners["a stage of the ladder"], corners["choose_token"])
    return figure


def corner(part: Part) -> tuple[float, float]:
    column, row = part.place
    return column * STEP_X, row * STEP_Y + 0.4


def _draw_part(axes: Axes, part: Part) -> None:
    x, y = corner(part)
    box = FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.1")
    box.set(facecolor=style.lighter(style.OUT), edgecolor=style.INK, linewidth=0.8)
    style.add(axes, box)
    lines = ((part.name, 0.19, style.INK, "bold", 8), (part.does, 0.41, style.INK, "normal", 8),
             (part.vllm, 0.62, style.QUIET, "normal", 7))  # fmt: skip
    for text, down, ink, weight, size in lines:
        place = (x + WIDTH / 2, y + down)
        axes.text(*place, text, ha="center", va="center", color=ink, weight=weight, size=size)


def _draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str
) -> None:
    """Down or up within a column, else from side to side."""
    (x1, y1), (x2, y2) = start, end
    if x1 == x2:
        above, below = (y1 + HEIGHT, y2) if y1 < y2 else (y1, y2 + HEIGHT)
        tail, head = (x1 + WIDTH / 2, above), (x2 + WIDTH / 2, below)
    else:
        tail, head = (x1 + WIDTH, y1 + HEIGHT / 2), (x2, y2 + HEIGHT / 2)
    style.add(axes, style.arrow(tail, head))
    if text:
        middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2 - 0.02)
        beside = {"ha": "left", "va": "center"} if x1 == x2 else {"ha": "center", "va": "bottom"}
        shift = 0.08 if x1 == x2 else 0.0
        axes.text(middle[0] + shift, middle[1], text, color=style.QUIET, size=7.5, **beside)


def _draw_scores(axes: Axes, stage: tuple[float, float], choose: tuple[float, float]) -> None:
    """From the last layer back to the first column, below everything."""
    start, end = stage[0] + WIDTH / 2, choose[0] + WIDTH / 2
    bottom, low = stage[1] + HEIGHT, stage[1] + HEIGHT + 0.2
    axes.plot([start, start, end], [bottom, low, low], color=style.QUIET, linewidth=0.8)
    style.add(axes, style.arrow((end, low), (end, bottom)))
    words, place = "scores, after the last layer", (STEP_X + WIDTH / 2, low + 0.05)
    axes.text(*place, words, ha="center", va="top", color=style.QUIET, size=7.5)
