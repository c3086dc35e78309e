"""DeviceTaintRules: taints that operators add to devices from outside (resourceslice/tracker,
applyPatches).

Fed by the inventory, which reads the taints of a device and the pools that a change concerns.
"""

from collections.abc import Iterable

from controller.inventory.model import Device, DeviceId
from hami_dra.api.resource import DeviceTaintRule, DeviceTaintSelector


class TaintRules:
    def __init__(self) -> None:
        self._rules: dict[str, DeviceTaintRule] = {}

    def changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is not None:
            self._rules[new.metadata.name] = new
        elif old is not None:
            self._rules.pop(old.metadata.name, None)

    def apply(self, devices: Iterable[Device]) -> None:
        """Set `extra_taints`, in order of the rules' names."""
        rules = [rule for _, rule in sorted(self._rules.items())]
        for device in devices:
            device.extra_taints = (
                tuple([rule.spec.taint for rule in rules if _selects(rule.spec.device_selector, device.id)])
                if rules
                else ()
            )


def concerns(rule: DeviceTaintRule | None, driver: str, pool: str) -> bool:
    selector = rule.spec.device_selector if rule is not None else None
    return selector is not None and selector.driver in {None, driver} and selector.pool in {None, pool}


def _selects(selector: DeviceTaintSelector | None, device: DeviceId) -> bool:
    """Return whether the selector matches. Without a selector no device does; an unset field matches any."""
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(want is None or want == have for want, have in zip(wanted, device, strict=True))
