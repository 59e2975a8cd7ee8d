"""The five texts that the walk grew out of."""

from collections.abc import Callable

from pa_tutorial.index.entry import Said, Source

DIVE = Source("Dive into Paged Attention", "jamesnulliu")
NOTES = Source("Page Attention", "course notes on LLM inference")
ROSELLM = Source("paged attention in rosellm", "the rosellm project")
ANALYSIS = Source("vLLM中的Paged Attention分析", "a blog on systems")
DOCUMENT = Source("vLLM Paged Attention", "vLLM's documentation")

SOURCES = (DIVE, NOTES, ROSELLM, ANALYSIS, DOCUMENT)


def says(source: Source) -> Callable[[str], Said]:
    """A short way to write where a source says something: says(source)("section 1")."""
    return lambda where: Said(source, where)


dive, notes, rosellm, analysis, document = map(says, SOURCES)
