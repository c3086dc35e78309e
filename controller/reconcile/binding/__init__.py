"""From a decision to the API server: claims written, also those of converted pods, and gates removed."""

from controller.reconcile.binding.assumed_pods import AssumedPods
from controller.reconcile.binding.binding_cycle import BindingCycle
from controller.reconcile.binding.claim_commit import ClaimCommitter, is_consumer, is_of_group
from controller.reconcile.binding.claim_writer import ClaimWriter, Rejected, Stale
from controller.reconcile.binding.converted_claims import ConvertedClaims
from controller.reconcile.binding.gate import GateKeeper, take_off
