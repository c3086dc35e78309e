"""Simulated hardware: reference machines as data, and slices as other drivers publish them."""

from hami_dra.driver.simulated.machines import (
    FabricMember,
    UnknownMachine,
    machine,
    machine_names,
    nodes_of_fabric,
    summary,
)
from hami_dra.driver.simulated.third_party import NotPublishedBy, foreign_devices

__all__ = [
    "FabricMember",
    "NotPublishedBy",
    "UnknownMachine",
    "foreign_devices",
    "machine",
    "machine_names",
    "nodes_of_fabric",
    "summary",
]
