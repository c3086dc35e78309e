"""Simulated hardware: reference machines as data, and slices as other drivers publish them."""

from hami_dra.driver.simulated.machines import (
    FabricMember,
    NotPublishedBy,
    UnknownMachine,
    foreign_devices,
    machine,
    machine_names,
    nodes_of_fabric,
    summary,
)
