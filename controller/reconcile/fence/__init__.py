"""Keeps kube-scheduler's own allocator off the managed devices, and proves it with a probe."""

from controller.reconcile.fence.fence import Fence, remove_rule, require_fenceable
from controller.reconcile.fence.probe import Prober
from controller.reconcile.fence.rules import (
    carries_fence,
    driver_of,
    is_fence_name,
    is_fence_rule,
    is_fenced_slice,
    is_in_force,
    is_intact,
    rule_names,
    rules_of,
)
