"""How a bad argument is refused."""


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise ValueError that names the argument, what it was and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


def require_heads(num_heads: int, num_kv_heads: int) -> None:
    require(num_heads >= 1, "num_heads", num_heads, "at least 1")
    require(
        num_kv_heads >= 1 and num_heads % num_kv_heads == 0,
        "num_kv_heads",
        num_kv_heads,
        f"a divisor of num_heads, which is {num_heads}",
    )
