"""What a thing that a program writes is made from, and a digest of it.

A module is made from its text and from what it names: modules of ours that it imports or has in a
string, what is loaded by name (`check("cpu")`), and files beside it, in the package or in
benchmarks/ ("bounds.json"). Of other libraries, the version in constraints.txt counts.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

PACKAGE = "pa_tutorial"
IMPORT = re.compile(rf"^ *(?:import|from) ({PACKAGE}[\w.]*)(?: import (\([^)]*\)|.*))?", re.M)
QUOTED = re.compile(rf'"({PACKAGE}[\w.]*)"')
BY_NAME = re.compile(r"""(?:(?:check|attempt|STAGES)[(\[]|stage(?:: str)? ?=)\s*"(\w+)\"""")
FILE = re.compile(r'"((?:[\w-]+/)*[\w-]+\.\w+)"')
LIBRARY = re.compile(r"^ *(?:import|from) (\w+)", re.M)
LONG_STRING = re.compile(r'"""(.|\n)*?"""')  # an example in a docstring loads nothing


def text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


class Sources:
    """The files of a working tree, as they were when they were first asked for.

    by_name  name -> the modules that are loaded when somebody asks for it by name
    """

    def __init__(self, root: Path, by_name: Mapping[str, set[str]]) -> None:
        self.root, self.by_name = root, by_name
        files = (root / PACKAGE).rglob("*.py")
        self.modules = {dotted(file.relative_to(root)): file for file in files}
        self.pins = text(root / "constraints.txt").splitlines()
        self.named_in = cache(lambda file: self.named(text(file), file.parent))
        self.libraries = cache(lambda file: {*LIBRARY.findall(text(file))})

    def digest(
        self, roots: Iterable[str], texts: Iterable[str] = (), but: frozenset[Path] = frozenset()
    ) -> str:
        """Of all that modules are made from, without some files, and of texts."""
        files = self.closure(self.modules[name] for name in roots)
        libraries = set().union(*(self.libraries(f) for f in files if f.suffix == ".py"))
        pins = [pin for pin in self.pins if re.split("[-=]", pin)[0] in libraries]
        pieces = sorted((file.name, hash_of(file.read_bytes())) for file in files - but)
        return hash_of(json.dumps([pieces, pins, [*texts]]).encode())[:16]

    def closure(self, roots: Iterable[Path]) -> set[Path]:
        """All that files are made from, themselves included."""
        found, waiting = set(), [*roots]
        while waiting:
            file = waiting.pop()
            if file not in found:
                found.add(file)
                waiting += self.named_in(file) if file.suffix == ".py" else ()
        return found

    def named(self, python: str, folder: Path) -> set[Path]:
        """The files that a text of Python names, which stands in a folder."""
        code = LONG_STRING.sub("", python)
        names = {name + end for name in QUOTED.findall(code) for end in ("", ".__main__")}
        for module, imported in IMPORT.findall(python):
            names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", imported))}
        names |= {m for name in BY_NAME.findall(code) for m in self.by_name.get(name, ())}
        folders = (folder, self.root / PACKAGE, self.root / "benchmarks")
        files = {place / name for name in FILE.findall(python) for place in folders}
        files |= {parent / "__init__.py" for parent in (folder, *folder.parents)}
        modules = {self.modules[name] for name in names & self.modules.keys()}
        return modules | {file for file in files if file.is_file()}


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def dotted(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")
