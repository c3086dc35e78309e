"""What would be different under another policy, with more pods, with nodes less, or with every pod placed anew.

Called by `hami-dra whatif` and the page. In: documents (files, a snapshot, or a controller's stores by
`controller.simulation.essence.documents_of`) and a `Change`. Out: a `Comparison`. The engine is that of `hami-dra simulate`, so that
of the controller; nothing is placed by any other rule. Pure.
"""

from controller.simulation.essence import documents_of
from controller.whatif.change import DEVICE_AXIS, NODE_AXIS, WEIGHTS_AXIS, BadChange, Change
from controller.whatif.compare import compare
from controller.whatif.model import Comparison

__all__ = ["DEVICE_AXIS", "NODE_AXIS", "WEIGHTS_AXIS", "BadChange", "Change", "Comparison", "compare", "documents_of"]
