"""notebooks/INDEX.md, from vLLM's names and readers' questions to us, and notebooks/ERRATA.md."""
