"""Device selectors of classes and requests, with their origin.

Called by `prepare` and by `candidates` (evaluate). The only module of this package that imports the
CEL library. In: API selectors. Out: verdicts, or AllocatorError that names the object and the
selector.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final, Protocol

from msgspec import Struct

from controller.allocation.errors import AllocatorError, SelectorOverBudget
from controller.inventory.model import Device
from controller.inventory.selector_budget import OverBudget, Payer
from hami_dra import cel
from hami_dra.api import resource as api
from hami_dra.api.similar_names import similar


class Origin(Struct, frozen=True):
    """The place of an expression, for messages."""

    owner: str
    """The object, such as `DeviceClass x`."""
    field: str

    def __str__(self) -> str:
        return f"{self.owner}: {self.field}"

    def of_claim(self, key: str) -> "Origin":
        """Return this field of another ResourceClaim."""
        return Origin(owner_of_claim(key), self.field)


Test = Callable[[Device], bool]
FAILURES: Final = (cel.CompileError, cel.EvaluationError, OverBudget)
"""Errors that a test may raise. `SliceSpent` is not among them: it says nothing about selector or device."""


class Judge(Protocol):
    """Evaluates expressions: `inventory.verdicts`, which caches results, or `PlainJudge`."""

    def compiled(self, expression: str, payer: Payer) -> cel.Selector | cel.CompileError:
        """Raises OverBudget, SliceSpent."""

    def test(self, expression: str, payer: Payer) -> Test:
        """Return a function that tests whether a device matches. Valid until a device is published.

        Both may raise CompileError, EvaluationError, OverBudget, SliceSpent.
        """


class PlainJudge:
    """Evaluates each time, without a budget: for problems that belong to no inventory."""

    def compiled(self, expression: str, _payer: Payer) -> cel.Selector | cel.CompileError:
        try:
            return cel.compile_selector(expression)
        except cel.CompileError as error:
            return error

    def test(self, expression: str, _payer: Payer) -> Test:
        evaluate = cel.compile_selector(expression).evaluate
        return lambda device: evaluate(device.selector_input)


PLAIN: Final = PlainJudge()


class Selector(Struct, frozen=True):
    """One CEL selector. It is compiled when the first device is tested, not before: as upstream."""

    expression: str
    origin: Origin
    payer: Payer
    judge: Judge

    def of_claim(self, key: str) -> "Selector":
        """Return the equal selector of another ResourceClaim."""
        return Selector(self.expression, self.origin.of_claim(key), self.payer, self.judge)

    def matches(self, device: Device) -> bool:
        """Return whether the device matches. Raises AllocatorError, SelectorOverBudget, SliceSpent.

        AllocatorError: the expression does not compile, or it fails on this device; neither means
        "does not match".
        """
        try:
            return self.judge.test(self.expression, self.payer)(device)
        except FAILURES as error:
            raise self.failure(error, device) from error

    def failure(self, error: Exception, device: Device) -> AllocatorError | SelectorOverBudget:
        """Return the error to report for one of `FAILURES`."""
        match error:
            case cel.CompileError():
                return self._error(error)
            case OverBudget():
                return SelectorOverBudget(str(self.origin), error.overrun)
            case _:
                return AllocatorError(
                    f"{self.origin} fails on device {device.id}: {error}{_published_elsewhere(device, str(error))}; "
                    "test with has(...), in or .? for what a device may lack"
                )

    def error_on(self, device: Device) -> str:
        """Return the error on a device; empty if there is none. Raises SelectorOverBudget, SliceSpent."""
        try:
            self.matches(device)
        except AllocatorError as error:
            return str(error)
        return ""

    def compile_error(self) -> AllocatorError | None:
        """Return the error if the selector does not compile. Raises SelectorOverBudget, SliceSpent."""
        compiled = self._compiled()
        return self._error(compiled) if isinstance(compiled, cel.CompileError) else None

    @property
    def asks_for_uuid(self) -> bool:
        return "uuid" in self.attribute_names

    @property
    def attribute_names(self) -> frozenset[str]:
        """The bare names of the attributes and capacities that it reads. Raises SelectorOverBudget, SliceSpent."""
        compiled = self._compiled()
        if isinstance(compiled, cel.CompileError):
            return frozenset()
        return frozenset(name for _, name in compiled.attributes)

    def _compiled(self) -> cel.Selector | cel.CompileError:
        try:
            return self.judge.compiled(self.expression, self.payer)
        except OverBudget as error:
            raise over_budget((self,), error) from error

    def _error(self, error: cel.CompileError) -> AllocatorError:
        return AllocatorError(f"{self.origin} does not compile: {error}")


def over_budget(selectors: Sequence[Selector], error: OverBudget) -> SelectorOverBudget:
    expression = error.overrun.expression
    origin = next((str(each.origin) for each in selectors if each.expression == expression), "a selector")
    return SelectorOverBudget(origin, error.overrun)


def owner_of_claim(key: str) -> str:
    """Return how messages name a claim."""
    return f"ResourceClaim {key}"


def selectors_of(
    selectors: Sequence[api.DeviceSelector], owner: str, field: str, payer: Payer, judge: Judge
) -> tuple[Selector, ...]:
    """Return the selectors. Raises AllocatorError: no expression.

    `owner` and `field`: their place, such as `DeviceClass x` and `spec.selectors`. As in
    kube-scheduler feature gates do not matter: what the API server admitted is evaluated.
    """
    result = []
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise AllocatorError(f"{owner}: {field}[{index}]: only CEL selectors are known; set cel.expression")
        expression = selector.cel.expression
        result.append(Selector(expression, Origin(owner, f"{field}[{index}]"), payer, judge))
    return tuple(result)


def _published_elsewhere(device: Device, error: str) -> str:
    """Return where the device has the name that the selector looks for, else the most similar name, else
    some that it has; empty for other errors.
    """
    if not error.startswith(_NO_SUCH_KEY):
        return ""
    paths: dict[str, str] = {}
    for kind, published in (("attributes", device.spec.attributes), ("capacity", device.spec.capacity)):
        for name in published:
            domain, _, bare = name.rpartition("/")
            paths.setdefault(bare, f'device.{kind}["{domain or device.id.driver}"].{bare}')
    wanted = error.removeprefix(_NO_SUCH_KEY)
    if wanted in paths:
        return f"; the device has {paths[wanted]}"
    near = get_close_matches(wanted, paths, n=1)
    return f"; the closest name is {paths[near[0]]}" if near else similar(wanted, paths)


_NO_SUCH_KEY: Final = "no such key: "
