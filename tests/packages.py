"""Which packages pip installs for a requirement, here or elsewhere, told from what is installed."""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MAC = {
    "sys_platform": "darwin",
    "platform_system": "Darwin",
    "platform_machine": "arm64",
    "os_name": "posix",
}
ONLY_THERE = {"appnope"}  # what ipykernel needs on macOS, and only there


def chosen(requirement: str, elsewhere: Mapping[str, str] | None = None) -> set[str]:
    """The names of a requirement and of all that it needs, under the markers of another system."""
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


def link_packages(names: set[str], site: Path) -> None:
    """Make the packages of those names, and no others, importable from a folder."""
    for name in names:
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            (site / top).unlink(missing_ok=True)
            (site / top).symlink_to(package.locate_file(top))
