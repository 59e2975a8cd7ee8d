"""The hand-out: TASKS.md, with a section for each task."""

POINTS = {"blocks_in_window": 2, "v1": 6, "v2": 5, "append_in_window": 4, "shared_bytes": 3}

INTRODUCTION = """\
# Change the kernel on Monday: a sliding window

Some models have layers with a **sliding window**: a query sees only the newest `window` tokens, \
itself included. The newest query of a sequence stands at position `seq_len - 1`, so with \
`window = W` it sees the W tokens `seq_len - W`, …, `seq_len - 1`; all of them if `seq_len <= W`. \
`window = 0` means no window.

For example `seq_len = 19`, `window = 6`, blocks of 8 tokens: the query at position 18 sees the \
tokens 13 to 18.

| block | tokens | what happens |
|---|---|---|
| 0 | 0 to 7 | skipped: its entry in the block table may be 0 |
| 1 | 8 to 15 | 8 to 12 are masked, 13 to 15 are seen |
| 2 | 16 to 23 | 16 to 18 are seen; 19 to 23 are slots without a token, masked as before |

Why: what a query reads of the KV cache no longer grows with the sequence, and neither does the \
memory that the sequence needs. But only if the kernel *skips* the blocks before the window, and \
the block manager lets go of them. You do both, in the kernel of this walk.

What you change: `paged_attention_window.py` and `reduce_window.py` are the package's kernels \
with one more argument, `window`, which nothing uses yet; `window.py` has three functions to \
write. Each file stands alone: it imports from `pa_tutorial`, not from the other files. \
Notebooks 03 and 08 to 12 are what you need to know. Plan three to five hours for the work, and \
before it up to an hour and a half to read this page and the kernel again. No GPU is needed: the \
kernels run in the simulator, with all its checks. With `window = 0` a kernel must still do \
what it did before.

**What you may rely on, and what not.** In a block table, the entries of blocks before the window \
may be 0: the null block, which holds no token. Everything that is not a token of the sequence may \
be NaN: the null block, free blocks, slots behind the end. A weight of 0 does not help: 0 * NaN is \
NaN. Tokens before the window in its first block are still in the cache, and are ordinary numbers.
"""

BLOCKS_IN_WINDOW = """\
In `window.py`: `blocks_in_window`. Plain Python, to get the borders right: the first token that \
the newest query sees, and the range of blocks in which the tokens it sees live. Most mistakes in \
the kernels are mistakes in these three numbers.
"""

V1 = """\
In `paged_attention_window.py`: the kernel with `PARTITION_SIZE = 0`. Blocks before the window are \
skipped, in both loops over blocks. Tokens before the window in the first block are masked. The \
head of a loop or two and a few other lines change; the rest can stay. Logit 0 belongs to the \
first slot of the first block that is seen, not to token 0: in task 5 there is shared memory for \
the logits of the window's blocks only.

Before you write: what score does the original give to a masked slot, and why is that no problem \
there? Is it one here?

The grader looks at the output; and in the cases `skips_k` and `skips_v` it counts the bytes that \
the thread blocks read of K and V. A kernel that reads all blocks and masks K and V is right if \
it masks both: the score in K, and V itself (set to 0, as behind the sequence), because the null \
block holds NaN. It does not get these two.
"""

V2 = """\
In `paged_attention_window.py` and `reduce_window.py`: the same with partitions. A partition that \
lies wholly before the window does nothing: it reads no q, K or V, and writes nothing. So its \
places in `exp_sums`, `max_logits` and `tmp_out` were never written. They may hold anything: NaN, \
or numbers of an earlier step. Whatever your first kernel leaves there, the grader puts something \
else in its place before the reduce kernel runs. The reduce kernel must not read them.

Where only one partition is left, its output is copied, bit by bit, as the original does it with \
a sequence of one partition. Which one is it now?

Some cases run only one of the two kernels, so that you get points for one that is right. Others \
count what is read, as in v1.
"""

APPEND_IN_WINDOW = """\
In `window.py`: `append_in_window`. It lets go of the blocks of a sequence that no query sees from \
now on, and then appends. Before, not after: the new tokens may need the very blocks that are \
given back. So a sequence of any length, one token a step, lives in a pool of \
`ceil((W - 1) / block_size) + 1` blocks.

Where a block was let go, the null block (0) stays in the table: all other blocks keep their \
places. A block that is shared with a fork is given back by this table only. Blocks with a name in \
the prefix cache keep it. Of several blocks that go, the last one is given back first: what is \
given back first is evicted first, and a block in the cache is found only with all blocks before it.

If there is no room, `append` raises `OutOfBlocks`, and so does yours. Then none of the new tokens \
is in the table; the blocks that were let go stay let go, no query needs them.

With several new tokens at once (a chunk), each of them has a query. Which of these looks back \
furthest?

`BlockTable.slide` of the package does a part of this. You may use it; read first what it assumes \
about the newest query, and for which windows it works.
"""

SHARED_BYTES = """\
In `window.py`: `shared_bytes`. The original asks for shared memory for the logits of the whole \
sequence: 4 bytes a token. A kernel that skips blocks needs room for the logits of the window's \
blocks only. How many blocks can W tokens touch? Give the smallest number of bytes that is enough \
for every sequence up to `max_seq_len`.

Almost half of the cases launch your kernel with it, on sequences whose logits would never fit \
into shared memory. So logit 0 must belong to the first slot of the first block that is seen.
"""

HOW_TO_LOOK = """\
## How to run, and how to look

In the folder of your files, `pytest` runs every case and prints the points; `pytest -k v1` runs \
those of a task, `pytest -k v1-one_token` one of them. A case that fails says what is wrong there; \
where several fail, what they "usually fail because" of is a place to look, not a verdict. \
The numbers of the grade are others than those here; the cases have the same names, and ask the \
same. Every case of a task is worth the same part of its points.

To look inside, launch a case yourself, with a trace and with a look at variables (here: when a \
thread block begins its sum):

```python
from pathlib import Path

from pa_tutorial.coursework.window import TASKS, load
from pa_tutorial.coursework.window.grading import v1_launch
from pa_tutorial.simt import global_traffic
from pa_tutorial.viz.microscope import microscope

answers = load(Path("."))
case = next(t for t in TASKS["v1"].trials(0) if t.name == "inside_a_block")
print(case.step.seq_lens, case.step.window, case.step.first_tokens())
prepared = v1_launch(case.step, answers["v1"])
line, names = "exp_sum = float32(0)", ("start_block_idx", "end_block_idx", "start_token_idx")
report = prepared.simulate(trace=0, watch=line, names=names)
for name in names:
    print(name, report.at(line)[0][name][0])       # of thread 0, in the first thread block
print(global_traffic(report.trace))                # what was read, line by line
microscope(report).save_html("look.html")          # who touches what, step by step
```

Most mistakes are in the first lines of the kernel: compare these three numbers with your \
`blocks_in_window`.

v2 has two launches, `prepared.partitions` and `prepared.reduce`; look at each alone. Thread \
block (0, 0, 0) has the first partition. Where that lies before the window it returns at once, so \
trace all thread blocks, and ask each snapshot of which thread block (head, sequence, partition) \
it is:

```python
from pa_tutorial.coursework.window.grading_partitions import v2_launches

case = next(t for t in TASKS["v2"].trials(0) if t.name == "second_block")
print(case.step.seq_lens, case.step.window, case.step.first_tokens())
prepared = v2_launches(case.step, answers["v2"])
report = prepared.partitions.simulate(trace="all", watch=line, names=names)
for snapshot in report.at(line):
    if snapshot.threads[0] == 0:                       # one warp of each thread block is enough
        print("thread block", snapshot.block, {name: int(snapshot[name][0]) for name in names})
print(global_traffic(report.trace))
```
"""

_TEXTS = {
    "blocks_in_window": ("the borders", BLOCKS_IN_WINDOW),
    "v1": ("the kernel", V1),
    "v2": ("the kernel with partitions, and the reduce kernel", V2),
    "append_in_window": ("the block table", APPEND_IN_WINDOW),
    "shared_bytes": ("the shared memory", SHARED_BYTES),
}


def section(task: str) -> str:
    """The section of TASKS.md for one task, without its heading."""
    return _TEXTS[task][1]


def tasks_text() -> str:
    """TASKS.md"""
    parts = [INTRODUCTION]
    for number, (task, (title, text)) in enumerate(_TEXTS.items(), start=1):
        parts.append(f"## {number}. `{task}`: {title} ({POINTS[task]} points)\n\n{text}")
    return "\n".join([*parts, HOW_TO_LOOK])
