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
        for extra in ("", *wanted.extras):
            if name in ONLY_THERE or (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in metadata.requires(name) or ():
                needed = Requirement(text)
                if not needed.marker or needed.marker.evaluate(
                    {**(elsewhere or {}), "extra": extra}
                ):
                    waiting.append(needed)
    return {name for name, _ in seen}


def link_packages(names: set[str], site: Path) -> None:
    """Make the packages of those names, and no others, importable from a folder."""
    for name in names:
        package = metadata.distribution(name)
        tops = {
            file.parts[0] for file in package.files if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            (site / top).unlink(missing_ok=True)
            (site / top).symlink_to(package.locate_file(top))
