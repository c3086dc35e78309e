"""Scores and orders: policies, node and device scores, the order in which devices are tried. HAMi's semantics."""

from controller.scheduling.scoring.chooser import CardOfRequest
from controller.scheduling.scoring.formulas import best_node, device_terms
from controller.scheduling.scoring.packing import Packing
from controller.scheduling.scoring.policies import (
    DevicePolicy,
    InvalidPolicy,
    Policies,
    parse_device_policy,
    parse_node_policy,
    parse_packing_weights,
)
from controller.scheduling.scoring.policy_resolution import check_preferences, invalid_values, resolve_policies

__all__ = [
    "CardOfRequest",
    "DevicePolicy",
    "InvalidPolicy",
    "Packing",
    "Policies",
    "best_node",
    "check_preferences",
    "device_terms",
    "invalid_values",
    "parse_device_policy",
    "parse_node_policy",
    "parse_packing_weights",
    "resolve_policies",
]
