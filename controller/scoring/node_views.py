"""The node as a vendor sees it when it arranges its cards: built in one way for one node and for
many.

Called by `scoring.chooser` (the node that is searched) and `decide.pre_score` (all candidate
nodes). Pure.
"""

import numpy as np

from controller.allocation.resolved import ResolvedRequest
from controller.scoring.policies import Policies
from hami_dra.api.arrays import Bools, Codes
from hami_dra.vendors.protocol import CardState, Layout, NodeView, Vendor


def card_states_of(eligible: Bools, idle: Bools, own: Bools) -> Codes:
    """Return the `CardState` flags by position. Arrays of one shape.

    >>> yes, no = np.array([True, False]), np.array([False, False])
    >>> card_states_of(yes, yes, no).tolist() == [CardState.ELIGIBLE | CardState.IDLE, 0]
    True
    """
    card_states: Codes = (
        eligible * np.uint8(CardState.ELIGIBLE) | idle * np.uint8(CardState.IDLE) | own * np.uint8(CardState.OWN)
    )
    return card_states


def node_view_of(
    layout: Layout,
    card_states: Codes,
    states: Codes,
    count: int,
    *,
    policies: Policies,
    vendor: Vendor,
    request: ResolvedRequest,
) -> NodeView:
    """Return the view. `card_states` and `states`: shape (layout.size,)."""
    return NodeView(
        layout=layout,
        card_states=card_states.tobytes(),
        states=states.tobytes(),
        count=count,
        preferences=policies.preferences_of(request.claim_key, request.name).of(vendor),
        node_policy=policies.hami_node_policy,
        device_keys=policies.for_claim(request.claim_key).hami_keys,
        plain=not request.names_amounts,
    )
