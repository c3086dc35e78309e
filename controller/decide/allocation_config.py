"""The vendors' parameters (QoS, ...) of an allocation, recorded in it as configuration for the node
driver.

Called by `decide` for every claim that it allocates. The driver reads them when it prepares the
devices, the ledger when it counts the users of a card; so nothing that a later decision needs is
held in memory only. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hami_dra.api import names
from hami_dra.vendors.preference_keys import RequestPreferences
from hami_dra.vendors.registry import vendor_of

Json = dict[str, Any]


def with_allocation_config(allocation: Json, preferences_of: Callable[[str], RequestPreferences]) -> Json:
    """Return the allocation with a `config` entry for each driver and its parameters. Changes
    nothing in place.

    `preferences_of`: by name of the request, as the results spell it. Requests with equal
    parameters share one entry; `requests` is only set where there are several:

        r0 and r1 guaranteed, r2 not    -> {"requests": ["r0", "r1"], ...}, {"requests": ["r2"]}
        r0 and r1 guaranteed, no others -> {...}
    """
    devices = allocation["devices"]
    entries = []
    by_parameters: list[tuple[str, Mapping[str, Any], list[str]]] = []
    """(driver, parameters, requests)"""
    requested = dict.fromkeys((result["driver"], result["request"]) for result in devices["results"])
    for driver, request in requested:
        vendor = vendor_of(driver)
        parameters = vendor.allocation_parameters(preferences_of(request).of(vendor)) if vendor is not None else {}
        for other, given, requests in by_parameters:
            if (other, given) == (driver, parameters):
                requests.append(request)
                break
        else:
            by_parameters.append((driver, parameters, [request]))
    for driver, parameters, requests in by_parameters:
        if not parameters:
            continue
        entry: Json = {
            "source": "FromClaim",
            "opaque": {
                "driver": driver,
                "parameters": {"apiVersion": names.CONFIG_API_VERSION, "kind": "DeviceConfig", **parameters},
            },
        }
        if len(by_parameters) > 1:
            entry["requests"] = requests
        entries.append(entry)
    if not entries:
        return allocation
    return {**allocation, "devices": {**devices, "config": [*devices.get("config", ()), *entries]}}
