"""What an allocation records beyond devices: the vendors' promises (QoS, ...), as configuration for the driver of the node.

Called by `decide` for every claim that it allocates. The driver reads them when it prepares the devices, the ledger when it
counts who is on a card; so nothing that a later decision needs lives in memory only. Pure.
"""

from typing import Any

from hami_dra.api.config import API_VERSION, DeviceConfig
from hami_dra.vendors.registry import vendor_of
from hami_dra.vendors.wanted import Wishes

Json = dict[str, Any]


def with_promises(allocation: Json, wishes: Wishes) -> Json:
    """The allocation with one more `config` entry for each driver that promises something. Changes nothing in place."""
    devices = allocation["devices"]
    entries = []
    by_driver: dict[str, list[str]] = {}
    for result in devices["results"]:
        requests = by_driver.setdefault(result["driver"], [])
        if result["request"] not in requests:
            requests.append(result["request"])
    for driver, requests in by_driver.items():
        vendor = vendor_of(driver)
        promise = vendor.promise(wishes.of(vendor)) if vendor is not None else {}
        if not promise:
            continue
        entry: Json = {
            "source": "FromClaim",
            "opaque": {
                "driver": driver,
                "parameters": {"apiVersion": API_VERSION, "kind": DeviceConfig.__name__, **promise},
            },
        }
        if len(by_driver) > 1:
            entry["requests"] = requests
        entries.append(entry)
    if not entries:
        return allocation
    return {**allocation, "devices": {**devices, "config": [*devices.get("config", ()), *entries]}}
