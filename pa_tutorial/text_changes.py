"""Our own code with pieces of its text replaced: wrong examples, wrong answers, an assignment.

A TOML file holds versions of code, each in a table:

    [alibi_sign]                       # its name; [[name]] where a name has several versions
    why = "one sentence: what is wrong, and what it does to the result"
    file = "attention/cached.py"       # may stand once, at the top of the TOML file
    old = "qk - slopes * distance"     # stands in the file exactly once
    new = "qk + slopes * distance"

Several changes of one version are several tables [[alibi_sign.change]]. What else a table holds is
for those who load it: what must find the mistake, for example.
"""

import linecache
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Change:
    """A piece of the text of a file, and what stands in its place."""

    file: str
    old: str
    new: str

    def made_in(self, text: str) -> str:
        """The text with the change. Raises ValueError unless `old` stands there exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"`old` must stand in {self.file} once, it stands there {count} times:\n{self.old}"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Version:
    """What a table says. more: what else stands in it."""

    name: str
    why: str
    changes: tuple[Change, ...]
    more: dict[str, Any] = field(default_factory=dict, hash=False)


def load_versions(path: Path) -> tuple[Version, ...]:
    """The versions of a TOML file, in its order."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    file = tables.pop("file", "")
    return tuple(
        _version(name, {"file": file} | table)
        for name, entry in tables.items()
        for table in (entry if isinstance(entry, list) else [entry])
    )


def _version(name: str, table: dict[str, Any]) -> Version:
    file, why = table.pop("file"), table.pop("why")
    changes = table.pop("change", None) or [{"old": table.pop("old"), "new": table.pop("new")}]
    return Version(name, why, tuple(Change(**{"file": file} | c) for c in changes), table)


def changed_texts(changes: Iterable[Change], read: Callable[[str], str]) -> dict[str, str]:
    """File -> its text with the changes made, one after the other; `read` gives a file's text."""
    texts: dict[str, str] = {}
    for change in changes:
        file = change.file
        texts[file] = change.made_in(texts[file] if file in texts else read(file))
    return texts


def compiled(text: str, file: str) -> CodeType:
    """The code of a text, which need not stand in a file: inspect finds it by this name.

    The simulator reads the source of a kernel. linecache asks the disk about an entry only if it
    has a time: here that is None.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")
