"""From a decision to the API server: claims are written, scheduling gates removed, claim templates
made.
"""

from controller.reconcile.binding.assumed_pods import AssumedPods
from controller.reconcile.binding.binding_cycle import BindingCycle
from controller.reconcile.binding.claim_commit import ClaimCommitter
from controller.reconcile.binding.claim_writer import ClaimWriter, Rejected, Stale
from controller.reconcile.binding.consumers import is_of_group
from controller.reconcile.binding.gate import GateKeeper, take_off
from controller.reconcile.binding.templates import TemplateMaker

__all__ = [
    "AssumedPods",
    "BindingCycle",
    "ClaimCommitter",
    "ClaimWriter",
    "GateKeeper",
    "Rejected",
    "Stale",
    "TemplateMaker",
    "is_of_group",
    "take_off",
]
