"""Placement of the pods of manifests, one by one, without a cluster: the engine of `hami-dra simulate`.

Called by the command. In: parsed documents and `SimulationSettings`. Out: a `SimulationReport`.
Runs the same conversion, policies and `decide` as the controller. The differences: every driver
counts as ours, pods are placed in file order, and nothing is validated as the API server would.
Pure, except for the time and the share ids, which come with the settings. Must not read files or
print.
"""

from controller.insight.simulation.essence import documents_of, essence
from controller.insight.simulation.pending import PendingPod, PendingPods, pending_pods
from controller.insight.simulation.placing import Placing
from controller.insight.simulation.question import NoSuchPod, Question, question
from controller.insight.simulation.report import SimulationReport, devices_of
from controller.insight.simulation.run import Played, load, play, simulate
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
