"""Refusing a bad argument: a message names it, says what it was and what is allowed."""

from operator import index


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise ValueError that names the argument, what it was and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


def require_type(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise TypeError that names the argument, its type and what is allowed."""
    if not condition:
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be {allowed}")


def whole_number(name: str, value: object, least: int) -> int:
    """The value as an int; whole numbers from NumPy are accepted too.

    Raises TypeError for any other type, including bool, and ValueError for a number below `least`.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    require_type(number is not None, name, value, "a whole number")
    require(number >= least, name, number, f"at least {least}")
    return number
