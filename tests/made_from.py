"""What a thing that a program writes is made from, and a digest of it.

A module is made from its text and from the modules of ours that it imports, at the top or in a
function. Further, from what it names in a string: another module ("pa_tutorial.engine"), a file
beside it, in the package or in benchmarks/ ("bounds.json"), and what is loaded by name
(`check("cpu")`). Of other libraries, the version in constraints.txt counts.
"""

import ast
import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "pa_tutorial"
FILE = re.compile(r"[\w-]+(/[\w-]+)*\.\w+")
BY_NAME = re.compile(r"""(?:(?:check|attempt|STAGES)[(\[]|stage(?:: str)? ?=)\s*"(\w+)\"""")


@dataclass
class Parts:
    modules: set[str] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)


class Sources:
    """The modules of a working tree, as they were when they were first asked for.

    by_name  name -> the modules that are loaded when somebody asks for it by name
    """

    def __init__(self, root: Path, by_name: Mapping[str, set[str]]) -> None:
        self.root, self.by_name = root, by_name
        self.modules = {dotted(file, root): file for file in (root / PACKAGE).rglob("*.py")}
        self.pins = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        self._texts: dict[str, str] = {}
        self._hashes: dict[tuple[str, bool], str] = {}
        self._parts: dict[str, Parts] = {}

    def digest(
        self,
        roots: Iterable[str],
        texts: Iterable[str] = (),
        bare: bool = False,
        but: frozenset[Path] = frozenset(),
    ) -> str:
        """Of all that modules are made from, and of texts.

        bare  of a module, comments and docstrings do not count
        but   files and modules that do not
        """
        parts = self.closure(roots)
        pieces = [
            *((m, self.hash(m, bare)) for m in parts.modules if self.modules[m] not in but),
            *((file.name, hash_of(file.read_bytes())) for file in parts.files - but),
            *(("", pin) for pin in self.pins if re.split("[-=]", pin)[0] in parts.libraries),
        ]
        return hash_of(json.dumps([sorted(pieces), [*texts]]).encode())[:16]

    def closure(self, roots: Iterable[str]) -> Parts:
        """All that the roots are made from, themselves included."""
        found, waiting = Parts(), [*roots]
        while waiting:
            name = waiting.pop()
            if name in found.modules:
                continue
            found.modules.add(name)
            if name not in self._parts:
                self._parts[name] = self.parts(self.text(name), self.modules[name].parent)
            parts = self._parts[name]
            found.files |= parts.files
            found.libraries |= parts.libraries
            waiting += parts.modules | ({name.rpartition(".")[0]} - {""})
        return found

    def text(self, module: str) -> str:
        if module not in self._texts:
            self._texts[module] = self.modules[module].read_text(encoding="utf-8")
        return self._texts[module]

    def hash(self, module: str, bare: bool) -> str:
        if (module, bare) not in self._hashes:
            text = self.text(module)
            text = without_words(text) if bare else text
            self._hashes[module, bare] = hash_of(text.encode())
        return self._hashes[module, bare]

    def parts(self, text: str, folder: Path) -> Parts:
        """What a text of Python names, which stands in a folder."""
        names: set[str] = set()
        strings: set[str] = set()
        # a docstring's example loads nothing
        bare = without_words(text) if BY_NAME.search(text) else ""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
        libraries = {name.partition(".")[0] for name in names}
        names |= {name + end for name in strings for end in ("", ".__main__")}
        names |= {m for name in BY_NAME.findall(bare) for m in self.by_name.get(name, ())}
        folders = (folder, self.root / PACKAGE, self.root / "benchmarks")
        files = {place / name for name in strings if FILE.fullmatch(name) for place in folders}
        ours = {name for name, file in self.modules.items() if file in files}
        files = {file for file in files - {*self.modules.values()} if file.is_file()}
        return Parts((names & self.modules.keys()) | ours, files, libraries)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def dotted(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def without_words(text: str) -> str:
    """A text of Python without comments, docstrings and empty lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        has_words = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_words and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
