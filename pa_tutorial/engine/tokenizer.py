"""Text to token ids and back."""

from collections.abc import Sequence as Several
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pa_tutorial.arguments import whole_numbers
from pa_tutorial.attention import tiny_lm


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Several[int]) -> str: ...


class ByteTokenizer:
    """TinyLM's: a token is a byte."""

    def encode(self, text: str) -> list[int]:
        return tiny_lm.encode(text).tolist()

    def decode(self, token_ids: Several[int]) -> str:
        return tiny_lm.decode(whole_numbers("token_ids", token_ids))


class FileTokenizer:
    """A tokenizer.json, read by Hugging Face's tokenizers (which comes with transformers).

    Raises ValueError if the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as FromFile

        try:
            self._tokenizer = FromFile.from_file(str(path))
        except Exception as error:  # the library raises nothing more exact
            raise ValueError(f"{path} cannot be read: {error}") from error

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, token_ids: Several[int]) -> str:
        return self._tokenizer.decode(list(token_ids))


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """A checkpoint's tokenizer; None if it has none or the library that reads it is missing."""
    path = folder / "tokenizer.json"
    if path.exists():
        with suppress(ModuleNotFoundError):
            return FileTokenizer(path)
    return None
