"""Simulated hardware: reference machines as data, and slices as other drivers publish them."""

from hami_dra.driver.simulated.machines import UnknownMachine, machine, machine_names, summary
from hami_dra.driver.simulated.third_party import NotPublishedBy, foreign_devices

__all__ = ["NotPublishedBy", "UnknownMachine", "foreign_devices", "machine", "machine_names", "summary"]
