"""What holds on Windows and macOS too, as far as Linux can tell."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT_MODE = re.compile("[rwax]t?[+]?")


def test_line_ends_stay_where_git_is_told_to_change_them(tmp_path: Path) -> None:
    """As Git for Windows is set up. What is compared byte for byte, and our shell scripts."""
    git = ["git", "-C", str(ROOT), "-c", "core.autocrlf=true"]
    files = ["figures/SHA256SUMS", ".ci/run", "figures/banks.svg", "figures/banks.png"]
    done = subprocess.run([*git, "checkout-index", f"--prefix={tmp_path}/", *files], check=False)
    if done.returncode:
        pytest.skip("this is no clone")
    different = [f for f in files if (tmp_path / f).read_bytes() != (ROOT / f).read_bytes()]
    assert not different


def test_every_text_is_read_and_written_as_utf_8() -> None:
    """Windows takes another encoding where none is named."""
    files = [path for folder in ("pa_tutorial", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert not [place for path in files for place in without_encoding(path)]


def without_encoding(path: Path) -> Iterator[str]:
    """Where a file or a pipe is opened as text, and nobody says in which encoding."""
    source = path.read_text(encoding="utf-8")
    if not re.search(r"open\(|(read|write)_text\(|\btext\b.{1,3}True", source):
        return  # without the seconds that the syntax trees of all files take
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and opens_text(node):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def opens_text(call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if isinstance(call.func, ast.Name):
        name, modes = call.func.id, call.args[1:2]
    else:
        name, modes = getattr(call.func, "attr", ""), call.args[:1]
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else None
    opens = name == "open" and (not modes or bool(TEXT_MODE.fullmatch(str(mode))))
    texts = isinstance(call.func, ast.Attribute) and name in ("read_text", "write_text")
    return "encoding" not in given and (opens or texts or given.get("text") == "True")
