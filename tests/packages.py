"""Which packages pip installs for a requirement, here or on a Mac, judged by what is installed."""

from collections.abc import Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MAC = {
    "sys_platform": "darwin",
    "platform_system": "Darwin",
    "platform_machine": "arm64",
    "os_name": "posix",
}
ONLY_THERE = {"appnope"}  # ipykernel needs it on macOS only


def chosen(requirement: str, elsewhere: Mapping[str, str] | None = None) -> set[str]:
    """The names of a requirement and all it needs, under the markers of another system."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        extras = {("", name), *((extra, name) for extra in wanted.extras)} - seen
        for extra, _ in extras if name not in ONLY_THERE else ():
            seen.add((extra, name))
            machine = {**(elsewhere or {}), "extra": extra}
            needed = map(Requirement, metadata.requires(name) or ())
            waiting += [n for n in needed if not n.marker or n.marker.evaluate(machine)]
    return {name for _, name in seen}
