"""Simulated fleets: many nodes with simulated devices, published by one process."""

from hami_dra.driver.fleet.fleet_file import Version, follow, parse_fleet, read_fleet, version_of
from hami_dra.driver.fleet.nodes import planned_nodes, pools_of
from hami_dra.driver.fleet.run import Fleet
