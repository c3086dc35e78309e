"""Place the pods of a set of manifests, one after the other, without a cluster: the engine of `hami-dra simulate`.

Called by the command. In: parsed documents and `Settings`. Out: a `Report`. Runs the same conversion, policies and `decide` as the
controller; what differs is only that every driver is ours, that pods go in file order, and that nothing is validated as the
API server would. Pure, but for the moment and the share ids that the settings bring along. Must not read files or print.
"""

from controller.simulation.objects import BadManifest
from controller.simulation.report import Report
from controller.simulation.run import Played, Settings, play, simulate

__all__ = ["BadManifest", "Played", "Report", "Settings", "play", "simulate"]
