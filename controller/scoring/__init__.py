"""Scores and orders: policies, node and device scores, the order in which devices are tried. HAMi's semantics."""

from controller.scoring.chooser import CardOfRequest
from controller.scoring.formulas import best_node, device_terms, sort_sign
from controller.scoring.native_order import native_ranking
from controller.scoring.policies import (
    DevicePolicy,
    InvalidPolicy,
    Packing,
    Policies,
    parse_device_policy,
    parse_node_policy,
    parse_packing_weights,
)
from controller.scoring.policy_resolution import check_preferences, invalid_values, resolve_policies
