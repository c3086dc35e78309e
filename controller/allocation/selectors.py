"""Device selectors of classes and requests, and where they came from.

Called by `prepare` (compile) and by `candidates` (evaluate). The only place of this package that knows the CEL library.
In: API selectors. Out: verdicts, or AllocatorError that names the object and the selector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.allocation.errors import AllocatorError
from controller.inventory.model import Device
from hami_dra import cel
from hami_dra.api import resource as api


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an expression stands, for messages."""

    owner: str
    """The object, such as `DeviceClass x`."""
    field: str

    def __str__(self) -> str:
        return f"{self.owner}: {self.field}"

    def of_claim(self, key: str) -> "Origin":
        """The same field of another ResourceClaim."""
        return Origin(owner_of_claim(key), self.field)


@dataclass(frozen=True, slots=True)
class Selector:
    """One CEL selector. A compile error is kept until a device is looked at: upstream compiles no earlier either."""

    expression: str
    origin: Origin
    compiled: cel.Selector | cel.CompileError

    def of_claim(self, key: str) -> "Selector":
        """The same selector in another ResourceClaim."""
        return Selector(self.expression, self.origin.of_claim(key), self.compiled)

    def matches(self, device: Device) -> bool:
        """Raises AllocatorError: it does not compile, or it fails on this device. Neither means "does not match"."""
        if isinstance(self.compiled, cel.CompileError):
            raise self.error()
        try:
            return self.compiled.evaluate(device.selector_input)
        except cel.EvaluationError as error:
            raise AllocatorError(
                f"{self.origin} fails on device {device.id}: {error}; ask first for what a device may lack: has(...), in, .?"
            ) from error

    @property
    def broken(self) -> bool:
        return isinstance(self.compiled, cel.CompileError)

    def error(self) -> AllocatorError:
        return AllocatorError(f"{self.origin} does not compile: {self.compiled}")

    @property
    def asks_for_uuid(self) -> bool:
        """It reads an attribute whose bare name is `uuid`."""
        return not isinstance(self.compiled, cel.CompileError) and any(
            name == "uuid" for _, name in self.compiled.attributes
        )


def owner_of_claim(key: str) -> str:
    """How messages name a claim."""
    return f"ResourceClaim {key}"


def compile_all(selectors: Sequence[api.DeviceSelector], owner: str, field: str) -> tuple[Selector, ...]:
    """`owner` and `field`: where they stand, such as `DeviceClass x` and `spec.selectors`. Raises AllocatorError: no expression.

    As in kube-scheduler feature gates do not matter: what the API server once let in is evaluated.
    """
    result = []
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise AllocatorError(f"{owner}: {field}[{index}]: only CEL selectors are known; set cel.expression")
        expression = selector.cel.expression
        result.append(Selector(expression, Origin(owner, f"{field}[{index}]"), _compile(expression)))
    return tuple(result)


def _compile(expression: str) -> cel.Selector | cel.CompileError:
    try:
        return cel.compile_selector(expression)
    except cel.CompileError as error:
        return error
