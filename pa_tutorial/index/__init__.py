"""The index of the walk, notebooks/INDEX.md: from vLLM's names and readers' questions to us."""
