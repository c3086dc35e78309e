"""An inventory of nodes and pods, and what its node filter says of a pod."""

from controller.inventory.inventory import Inventory
from controller.reasons.catalogue import CODES


class Filtered:
    def __init__(self, *nodes):
        self.inventory = Inventory()
        for each in nodes:
            self.inventory.node_changed(None, each)

    def run(self, *pods):
        """Let pods run that have a nodeName."""
        for each in pods:
            self.inventory.pod_changed(None, each)
        return self

    def refused(self, wanted):
        """Return node → reason code; nodes that fit are left out."""
        nodes, fit = self.inventory.nodes, self.inventory.rules.node_fit(wanted)
        codes = {nodes.names[row]: CODES[fit.codes[row]] for row in range(nodes.size) if nodes.present[row]}
        return {name: code for name, code in codes.items() if code}

    def why(self, wanted):
        """Return node → why it is refused, in words."""
        nodes, fit = self.inventory.nodes, self.inventory.rules.node_fit(wanted)
        rows = [row for row in range(nodes.size) if nodes.present[row] and not fit.mask[row]]
        return {nodes.names[row]: self.inventory.rules.why_unfit(wanted, fit, row) for row in rows}
