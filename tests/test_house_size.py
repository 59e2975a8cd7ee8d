"""Everything is within its limit, and only code counts as code."""

from tests.house_size import LIMITS, OVER, TOO_LARGE, lines_of_code, row, rows

SOURCE = '''"""A docstring
of two lines."""

# A comment.
TEXT = """

"""  # Three lines, and one more for `x`.
x = 1
'''


def test_everything_is_within_a_tenth_of_its_limit() -> None:
    assert not [one for one in rows() if TOO_LARGE in one]


def test_a_limit_warns_before_it_fails() -> None:
    limit = LIMITS["files"]["repository"]
    assert row("files", "repository", limit + 1).endswith(OVER)
    assert row("files", "repository", limit * 11 // 10 + 1).endswith(TOO_LARGE)


def test_blank_lines_comments_and_docstrings_are_not_counted() -> None:
    assert lines_of_code(SOURCE) == 4
