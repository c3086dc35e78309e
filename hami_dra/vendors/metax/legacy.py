"""HAMi's MetaX resource names (HAMi D/metax/device.go and sdevice.go, GenerateResourceRequests, MutateAdmission).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. An sGPU always names
its cores, which distinguishes it from a whole card. Unlike in HAMi, amounts that HAMi would ignore
or misread are refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hami_dra.api import names
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors import legacy
from hami_dra.vendors.metax.preferences import APP_CLASS, ONLINE, app_class, qos_policy
from hami_dra.vendors.metax.publish import MetaxPublishing
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.quotas import Counted, Quotas, cards, gibibytes, percent

GPU: Final = MetaxPublishing.extended_resource
SGPU: Final = "metax-tech.com/sgpu"
CORES: Final = "metax-tech.com/vcore"
MEMORY: Final = "metax-tech.com/vmemory"

_ALL: Final = 100
_GIB: Final = 1 << 30
_MOST_GIB: Final = 4 << 10
"""4 TiB: beyond any card, so a larger number was not meant as GiB."""


class MetaxLegacy(legacy.WholeByCount, of=MetaxPublishing):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    resources: tuple[str, ...] = (GPU, SGPU, CORES, MEMORY)
    plugin_resources: tuple[str, ...] = (GPU, SGPU)
    quotas = Quotas((cards(GPU, Counted.WHOLE), cards(SGPU, Counted.PART), gibibytes(MEMORY), percent(CORES)))

    def read(self, resources: legacy.ContainerResources) -> legacy.LegacyReading:
        whole = resources.whole(GPU, "counts whole cards", legacy.MAX_CARDS)
        parts = resources.whole(SGPU, "counts sGPUs, parts of different cards", legacy.MAX_CARDS)
        cores = resources.whole(CORES, "is a percentage of each card's cores", _ALL)
        memory = _memory(resources)
        if whole and parts:
            raise resources.both(GPU, SGPU, "whole cards or for sGPUs")
        for name in (CORES, MEMORY):
            resources.needs(name, SGPU)
        if whole:
            return legacy.LegacyReading(legacy.LegacyRequest(whole))
        if not parts:
            return legacy.LegacyReading(None)
        capacity = {names.CAP_CORES: _ALL if cores is None else cores}
        if memory:
            capacity[names.CAP_MEMORY] = memory
        return legacy.LegacyReading(legacy.LegacyRequest(parts, capacity))

    def settled(self, request: legacy.LegacyRequest, annotations: Mapping[str, Any]) -> legacy.LegacyRequest:
        """Return the request of an online or offline task (D/metax/sdevice.go): one sGPU; if online, no cores."""
        app = annotations.get(APP_CLASS)
        if not app or names.CAP_CORES not in request.capacity:
            return request
        if request.count != 1:
            raise legacy.InvalidLegacy(f"app-class pod must request single device: {SGPU} is {request.count}, write 1")
        if app != ONLINE:
            return request
        return msgspec.structs.replace(request, capacity={**request.capacity, names.CAP_CORES: 0})

    def filters(self, annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return no filters; but an invalid QoS or class of tasks is refused at once, as by HAMi's webhook."""
        try:
            app_class(annotations)
            qos_policy(annotations)
        except InvalidPreference as error:
            raise legacy.InvalidLegacy(f"annotation {error.annotation}: {error}") from error
        return {}


def _memory(resources: legacy.ContainerResources) -> int | None:
    """Return bytes of each card, 0 = all; None if not given. A bare number is GiB, with a suffix it is a quantity."""
    if MEMORY not in resources:
        return None
    value = resources.limits[MEMORY] if MEMORY in resources.limits else resources.requests[MEMORY]
    problem = (
        f"{resources.field(MEMORY)} is {value!r}, but it is the memory of each card: write a whole number of GiB "
        f"from 0 to {_MOST_GIB}, or a quantity of at least 1Mi such as 512Mi"
    )
    try:
        amount = Quantity.parse(str(value))
    except InvalidQuantity:
        raise legacy.InvalidLegacy(problem) from None
    if legacy.counts_fractions(value) or not amount.is_whole() or amount < Quantity.from_int(0):
        raise legacy.InvalidLegacy(problem)
    number = amount.value()
    if number == 0:
        return 0
    if not any(letter.isalpha() for letter in str(value)):
        number *= _GIB
    if not legacy.MIB <= number <= _MOST_GIB * _GIB:
        raise legacy.InvalidLegacy(problem)
    return number
