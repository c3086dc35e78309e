"""Derived attributes: expressions that return a value (alpha gate DRADerivedAttributes).

Called by the allocator's constraints. In: an expression; then DeviceInputs. Out: an attribute as a
device would publish it. Rules: k8s.io/dynamic-resource-allocation v0.37 cel/compile.go,
EvaluateDerivedAttribute.
"""

from typing import Any, Final

from msgspec import Struct

from hami_dra.api.resource import DeviceAttribute
from hami_dra.api.semver import SemVer
from hami_dra.api.short_texts import cached_if_short
from hami_dra.cel import types as t
from hami_dra.cel.checker import shown
from hami_dra.cel.device import DeviceInput
from hami_dra.cel.environment import Features
from hami_dra.cel.errors import CelError, CompileError, CostExceeded, EvaluationError
from hami_dra.cel.meter import Meter
from hami_dra.cel.selector import Selector, checked
from hami_dra.cel.values import type_name

_SCALARS: Final = (t.BOOL, t.INT, t.STRING, t.SEMVER, t.ANY, t.DYN)
_FIELDS: Final[dict[type, tuple[str, str]]] = {
    bool: ("bool_", "bools"),
    int: ("int_", "ints"),
    str: ("string", "strings"),
    SemVer: ("version", "versions"),
}
"""Python type → field of DeviceAttribute for one value, and for a list of values."""


class DerivedAttribute(Struct, frozen=True, eq=False):
    """A compiled expression."""

    program: Selector

    def evaluate(self, device: DeviceInput) -> DeviceAttribute:
        """Return the attribute of this device. Raises EvaluationError."""
        if device.problem:
            raise EvaluationError(device.problem)
        try:
            value = self.program.run_metered(device, Meter())
        except (CelError, CostExceeded) as error:
            raise EvaluationError(str(error)) from None
        except RecursionError:
            raise EvaluationError("operation cancelled: the expression is nested too deeply") from None
        return _attribute(value)


def compile_attribute(expression: str) -> DerivedAttribute:
    """Compile an expression as kube-scheduler does, whatever the gates. Raises CompileError.

    Results are cached, as for selectors.
    """
    outcome = _compile(expression)
    if isinstance(outcome, CompileError):
        raise outcome.with_traceback(None)
    return outcome


@cached_if_short(256, 512)
def _compile(expression: str) -> DerivedAttribute | CompileError:
    try:
        tree, slots = checked(expression, Features())
        if not _allowed(tree.type):
            return CompileError(
                "must evaluate to a primitive scalar (string, integer, boolean, semver) or a list of these scalars, "
                f"not {shown(tree.type)}"
            )
        return DerivedAttribute(Selector(expression, tree, slots))
    except CompileError as error:
        return error
    except RecursionError:
        return CompileError("compilation failed: ERROR: <input>:-1:0: max recursion depth exceeded")


def _allowed(type_: t.Type) -> bool:
    return type_ in _SCALARS or (type_.name == "list" and type_.params[0] in _SCALARS)


def _attribute(value: Any) -> DeviceAttribute:
    if type(value) in _FIELDS:
        return DeviceAttribute(**{_FIELDS[type(value)][0]: _plain(value)})
    if type(value) is not list:
        raise EvaluationError(f"unsupported CEL return type: {type_name(value)}")
    element = type(value[0]) if value else str
    if element not in _FIELDS:
        raise EvaluationError(f"unsupported list element type: {type_name(value[0])}")
    for index, each in enumerate(value):
        if type(each) is not element:
            raise EvaluationError(
                f"expected list element at index {index} to be {type_name(value[0])}, got {type_name(each)}"
            )
    values: Any = tuple(map(_plain, value))
    return DeviceAttribute(**{_FIELDS[element][1]: values})


def _plain(value: Any) -> Any:
    return str(value) if type(value) is SemVer else value
