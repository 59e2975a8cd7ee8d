"""Ways to points without an answer, and ways to stop the grading: none of them works."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from coursework_students import DRAW, EMPTY, FIRST, LIMITS, NAME, RIGHT, SECOND, THIRD, files

from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.child import require_functions
from pa_tutorial.coursework.grading import ROOT, Grade, grade, one_line
from pa_tutorial.coursework.plain import MOST_BYTES, files_of_folder
from pa_tutorial.walk.calls import AnswerError


def graded(texts: dict[str, str]) -> Grade:
    return grade("student", texts, assignment(NAME), DRAW, LIMITS)


def test_an_adapter_that_returns_no_function_gets_no_points() -> None:
    """Trials run our own solution in the place of None."""
    adapters = f"""
def {FIRST}():
    return None


def {SECOND}():
    return (None, None)


def {THIRD}():
    from answers import {THIRD}

    return {THIRD}
"""
    result = graded({**files(RIGHT), "answers.py": f"{THIRD} = None\n", "adapters.py": adapters})
    assert result.points == 0, result
    for task in result.tasks:
        assert "it must return the function" in task.note


@pytest.mark.parametrize("answer", [None, (), (len,), (len, None), (None, len)])
def test_a_task_of_two_functions_needs_both(answer: object) -> None:
    task = assignment("sliding_window").task("v2")
    require_functions((len, len), task)
    with pytest.raises(AnswerError, match="it must return"):
        require_functions(answer, task)


def test_an_answer_in_another_file_counts_where_the_stub_still_stands() -> None:
    """README says that code may be moved."""
    texts = files(EMPTY)
    adapters = texts["adapters.py"].replace(
        f"from answers import {FIRST}", f"from own import {FIRST}"
    )
    own = "import math\n\n" + RIGHT[FIRST].replace("Iterator[float]", "object")
    result = graded({**texts, "adapters.py": adapters, "own.py": own})
    assert [task.points for task in result.tasks] == [10, 0, 0], result


def test_a_message_can_neither_flood_nor_forge_the_report() -> None:
    forged = "    raise ValueError('\\n  10.00 of 10  \\ud800 \\x1b[31m' + 'x' * 10**7)"
    result = graded({**files({**RIGHT, SECOND: f"def {SECOND}(parts):\n{forged}\n"})})
    assert [task.points for task in result.tasks] == [10, 0, 10]
    why = result.tasks[1].reasons[0]
    assert len(why) < 3000
    assert why.isprintable()
    assert str(result).encode()


def test_one_line() -> None:
    assert one_line("a\nb\x1b\ud800é") == "a b  é"


def test_files_are_read_as_editors_write_them(tmp_path) -> None:
    (tmp_path / "adapters.py").write_bytes(b"\xef\xbb\xbfdef v1(): ...\r\n")
    (tmp_path / "folder.py").mkdir()
    assert files_of_folder(tmp_path)[1] == {"adapters.py": "def v1(): ...\n"}
    (tmp_path / "large.py").write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(ValueError, match=r"large\.py has 1,048,577 bytes"):
        files_of_folder(tmp_path)


def write_key(path: Path, seconds: int) -> None:
    key = {"draw": DRAW, "limits": {"seconds": seconds, "megabytes": 400}}
    path.write_text(json.dumps(key), encoding="utf-8")


def test_what_cannot_be_graded_stops_no_other(tmp_path, capsys) -> None:
    key, table = tmp_path / "key.json", tmp_path / "points.csv"
    write_key(key, seconds=5)
    folders = [tmp_path / student / NAME for student in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        for name, text in files(EMPTY).items():
            (folder / name).write_text(text, encoding="utf-8")
    paths = [str(path) for path in (folders[0], tmp_path / "nobody", folders[1])]
    assert main(["grade", "--key", str(key), "--csv", str(table), *paths]) == 2
    assert "nobody: not graded" in capsys.readouterr().err
    rows = table.read_text(encoding="utf-8").splitlines()
    assert [sum(row.startswith(path) for row in rows) for path in paths] == [3, 1, 3]


@pytest.mark.parametrize("text", ["nothing", "[]", "{}", '{"draw": 1, "limits": {"hours": 1}}'])
def test_a_key_that_is_none_is_named(text: str, tmp_path, capsys) -> None:
    key = tmp_path / "key.json"
    key.write_text(text, encoding="utf-8")
    assert main(["grade", "--key", str(key), str(tmp_path)]) == 2
    assert "key is " in capsys.readouterr().err


@pytest.mark.needs("POSIX")
def test_files_that_an_answer_writes_stay_small(tmp_path) -> None:
    text = """
import sys
from pa_tutorial.coursework.limits import FILE_MEGABYTES, limit_files
limit_files()
with open(sys.argv[1], "wb") as file:
    for _ in range(FILE_MEGABYTES + 1):
        file.write(bytes(2**20))
"""
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "x")],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert "File too large" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.needs("POSIX")
def test_no_process_stays_when_grading_is_stopped(number: int, tmp_path) -> None:
    key, folder = tmp_path / "key.json", tmp_path / NAME
    folder.mkdir()
    write_key(key, seconds=100)
    for name, text in files({**RIGHT, FIRST: f"def {FIRST}(s):\n    while True: pass\n"}).items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pa_tutorial.coursework", "grade", "--key", str(key)]
    with subprocess.Popen([*command, str(folder)], cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (child := children_of(process.pid)):
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)  # the grader has noted that it started one
        process.send_signal(number)
        assert process.wait(30) in (130, 143)
        assert not any(map(psutil.pid_exists, child))
        assert b"Traceback" not in process.stderr.read()


def children_of(pid: int) -> list[int]:
    """The processes that check answers; an import may have started others, for a moment."""
    return [child.pid for child in psutil.Process(pid).children() if is_checking(child)]


def is_checking(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended since
        return "pa_tutorial.coursework.child" in process.cmdline()
    return False
