"""Effects of a change: another policy, more pods, fewer nodes, or placing all pods again.

Called by `hami-dra whatif` and the dashboard. In: documents (files, a snapshot, or a controller's
stores by `controller.insight.simulation.essence.documents_of`) and a `Change`. Out: a `Comparison`.
It uses the engine of `hami-dra simulate`, and thus of the controller; no pod is placed by any other
rule. Pure.
"""

from controller.insight.whatif.change import DEVICE_AXIS, NODE_AXIS, WEIGHTS_AXIS, BadChange, Change
from controller.insight.whatif.compare import compare
