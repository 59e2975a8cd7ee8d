"""my_kernel.py: the kernels with what a reader has written, from notebook to notebook.

    save(mine)                       # at the end of 08, 11, 12 and 13; mine is a KernelFile
    KernelFile("v1", *saved("v1"))   # at the beginning of 11 to 13: theirs, where saved

The file is a module that can be read and run. Its YOURS names the functions that are the reader's;
all others are ours, so a check of it never certifies ours as theirs.
"""

import ast
import builtins
import os
from collections.abc import Mapping
from pathlib import Path

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.kernel_file import KernelFile, functions_in, joined, pieces, updated
from pa_tutorial.tracebacks import ShortInNotebooks

PLACE = "PA_TUTORIAL_MY_KERNEL"  # an environment variable: another path than my_kernel.py
# stage -> the name of its KernelFile
KERNELS = {"cuda_naive": "naive", "cuda_v1": "v1", "cuda_v1_vector": "vectors", "cuda_v2": "v2"}
YOURS = "constant", "YOURS"
HEAD = '''"""My paged attention kernels. `python -m pa_tutorial.exercises cuda_v1 {name}` checks v1.

YOURS names the functions that I have written; all others come with the tutorial.
"""

'''


class MyKernelError(ShortInNotebooks, ValueError):
    """my_kernel.py can't be used; the message is one line that says why."""


def path_of() -> Path:
    """Beside the notebooks, where JupyterLab runs them, unless PA_TUTORIAL_MY_KERNEL says where."""
    return Path(os.environ.get(PLACE, "my_kernel.py"))


def save(mine: KernelFile) -> None:
    """Add a kernel to my_kernel.py, with the functions in it that the reader has written.

    If something of the reader's would be lost, what the file was before stays beside it, as
    my_kernel_1.py. If nothing in the kernel is theirs, no file is written.
    """
    path, text = path_of(), mine.text()
    yours = mine.written() & names_of_blanks()
    if not yours:
        print(f"None of these functions is yours yet, so {path.name} isn't written.")
        return
    before = text_in(path) if path.exists() else ""
    try:
        kept = parts_of(before, path.name) if before else {}
    except MyKernelError:
        kept = {}
    parts = pieces(updated(before, text) if kept else text)
    if before and loses(before, parts):
        print(f"The previous {path.name} is now {keep_beside(path, before)}.")
    all_yours = sorted(yours | (names_of_reader(kept) - functions_in(text)))
    names = "".join(f'    "{name}",\n' for name in all_yours)
    parts["docstring", ""] = HEAD.format(name=path.name)
    parts.pop(YOURS, None)
    path.write_text(joined({YOURS: f"\nYOURS = (\n{names})\n"} | parts), encoding="utf-8")
    print(f"{path.name} is written. {whose(functions_in(text), yours)}")


def saved(kernel: str) -> tuple[str, ...]:
    """The reader's functions for a kernel, as texts for a KernelFile; prints whose it takes.

    kernel  the name of a KernelFile

    Nothing is raised. A file that can't be used is named, and our functions take the place of its.
    """
    path = path_of()
    if not path.exists():
        print(f"{path.name} doesn't exist yet, so all functions are ours.")
        return ()
    try:
        parts = parts_of(text_in(path), path.name)
    except MyKernelError as error:
        print(f"{error} All functions are ours.")
        return ()
    ours, known = pieces(KernelFile(kernel).text()), names_in(kernel)
    wanted = {name for kind, name in ours if kind == "function"}
    yours = []
    for name in sorted(names_of_reader(parts) & wanted):
        theirs, expected = parameters(parts["function", name]), parameters(ours["function", name])
        if len(theirs) != len(expected):
            taken, must = (", ".join(names) for names in (theirs, expected))
            print(f"{path.name} is old: {name} takes ({taken}), and it must take ({must}).")
        # A function for a later kernel, such as load_key with vector loads, doesn't fit into v1.
        elif names_used(parts["function", name]) <= known:
            yours.append(name)
    print(f"{path.name}: {whose(wanted, set(yours))}")
    return tuple(parts["function", name].strip() + "\n" for name in yours)


def load(path: Path, kernel: str) -> KernelFile:
    """A saved file as a backend for check; prints whose functions it has.

    Raises MyKernelError, with one line, if it isn't there, is damaged, or lacks the kernel.
    """
    if not path.exists():
        raise MyKernelError(f"{path} doesn't exist.")
    text = text_in(path)
    parts, wanted = parts_of(text, path), functions_in(KernelFile(kernel).text())
    if missing := sorted(wanted - functions_in(text)):
        raise MyKernelError(f"{path} isn't a complete {kernel}: it lacks {', '.join(missing)}.")
    print(f"{path}: {whose(wanted, names_of_reader(parts) & wanted)}")
    return KernelFile(kernel, text)


def text_in(path: Path) -> str:
    """Bytes that aren't UTF-8 are kept as they are; parts_of refuses them."""
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def parts_of(text: str, name: object) -> dict[tuple[str, str], str]:
    """The definitions of a saved file. Raises MyKernelError unless it is one, and Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MyKernelError(f"{name} is damaged: it isn't UTF-8.") from None
    try:
        parts = pieces(text)
        yours = names_of_reader(parts)
    except (SyntaxError, ValueError) as error:
        raise MyKernelError(f"{name} is damaged: {error}.") from None
    if YOURS not in parts:
        raise MyKernelError(f"{name} doesn't say whose functions it has: YOURS is missing.")
    if lost := sorted(one for one in yours if ("function", one) not in parts):
        raise MyKernelError(f"{name} is damaged: YOURS names {', '.join(lost)}, which it lacks.")
    return parts


def names_of_reader(parts: Mapping[tuple[str, str], str]) -> set[str]:
    """The names in YOURS. Raises ValueError if it is no tuple of names."""
    if YOURS not in parts:
        return set()
    (node,) = ast.parse(parts[YOURS].strip()).body
    names = ast.literal_eval(node.value)
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"YOURS is {names!r}; it must be a tuple of names")
    return set(names)


def names_in(kernel: str) -> set[str]:
    """What a function of a kernel can use."""
    return {*vars(KernelFile(kernel).module()), *dir(builtins)}


def parameters(function: str) -> list[str]:
    (node,) = ast.parse(function.strip()).body
    return [argument.arg for argument in node.args.args]


def names_used(function: str) -> set[str]:
    """The names that a function takes from its module."""
    nodes = list(ast.walk(ast.parse(function.strip())))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - own


def names_of_blanks() -> set[str]:
    return {blank.function for blank in all_blanks().values()}


def whose(names: set[str], yours: set[str]) -> str:
    """Which functions of a kernel that a reader can write are theirs, and which ours."""
    ours = sorted(names & names_of_blanks() - yours)
    words = [
        f"{who}: {', '.join(of)}." for who, of in (("Yours", sorted(yours)), ("Ours", ours)) if of
    ]
    return " ".join(words)


def loses(before: str, parts: Mapping[tuple[str, str], str]) -> bool:
    """Whether a text has anything, apart from its constants, that the new file hasn't."""
    try:
        old = parts_of(before, "")
    except MyKernelError:  # it is another file, or a damaged one
        return True
    functions = [(key, text) for key, text in old.items() if key[0] == "function"]
    return len(old) < len(ast.parse(before).body) or any(
        parts.get(key, "").strip() != text.strip() for key, text in functions
    )


def keep_beside(path: Path, text: str) -> str:
    """Write the text into my_kernel_1.py, or under the first number that is free; its name."""
    number = 1
    while (beside := path.with_name(f"{path.stem}_{number}.py")).exists():
        number += 1
    beside.write_text(text, encoding="utf-8", errors="surrogateescape")
    return beside.name
