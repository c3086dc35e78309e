"""Simulated hardware: reference machines as data, and slices as other drivers publish them."""

from hami_dra.driver.simulated.machines import UnknownMachine, machine, machine_names, summary

__all__ = ["UnknownMachine", "machine", "machine_names", "summary"]
