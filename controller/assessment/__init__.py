"""What is to be decided about a pod, or about the members of a gang, or why there is nothing to
decide: one rule for the controller and for simulations.
"""

from controller.assessment.cluster_feeds import cluster_feeds
from controller.assessment.pod_assessment import (
    Assessment,
    AssessmentSettings,
    ClusterView,
    Fault,
    Foreign,
    Ignored,
    Waiting,
    assess,
    has_devices,
    shared_claims,
)
from controller.assessment.unit_assessment import AssessedUnit, Signature, Undecided, assess_unit
