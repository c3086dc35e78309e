"""Errors of selectors. `CompileError` and `EvaluationError` leave the package; the others do not.

The messages are Kubernetes' own if users know them from events or API errors.
"""

from typing import Final

COST_EXCEEDED: Final = "operation cancelled: actual cost limit exceeded"


class CompileError(ValueError):
    """The expression is not a valid selector; fix the selector. The message shows where."""


class EvaluationError(ValueError):
    """The selector failed on this device (which differs from "does not match")."""


class CostLimitExceeded(EvaluationError):
    """The evaluation was stopped because it cost more than the caller allows."""


class CelError(Exception):
    """A CEL error value. `&&`, `||`, `all` and `exists` may absorb it; at the top it becomes an EvaluationError."""


class CostExceeded(Exception):
    def __init__(self) -> None:
        super().__init__(COST_EXCEEDED)


def no_such_overload() -> CelError:
    return CelError("no such overload")


def located(source: str, offset: int, message: str) -> CompileError:
    """Return the error as cel-go prints it: position, line, and a pointer to the column (from 1)."""
    before = source[:offset]
    line_number = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1)
    line = source.split("\n")[line_number - 1]
    pointer = "." * column + "^"
    return CompileError(
        f"compilation failed: ERROR: <input>:{line_number}:{column + 1}: {message}\n | {line}\n | {pointer}"
    )
