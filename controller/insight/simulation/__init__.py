"""Placement of the pods of manifests, one by one, without a cluster: the engine of `hami-dra
simulate`.

Called by the command. In: parsed documents and `SimulationSettings`. Out: a `SimulationReport`. Runs the same
conversion, policies and `decide` as the controller. The differences: every driver counts as ours,
pods are placed in file order, and nothing is validated as the API server would. Pure, except for
the time and the share ids, which come with the settings. Must not read files or print.
"""

from controller.insight.simulation.objects import BadManifest
from controller.insight.simulation.report import SimulationReport
from controller.insight.simulation.run import Played, SimulationSettings, play, simulate

__all__ = ["BadManifest", "Played", "SimulationReport", "SimulationSettings", "play", "simulate"]
