"""Every annotation that a Struct of this project keeps: what nobody reads is dropped where objects are decoded.

Read by `hami_dra.cluster.answers` and by snapshots. Programs that look at whole objects as JSON (the webhook, `convert`) do
not come through here. Whoever reads another annotation of a decoded object adds it to one of these sets.
"""

from typing import Final

from hami_dra.api import names
from hami_dra.vendors.registry import WISH_ANNOTATIONS

DECISION_ANNOTATIONS: Final = WISH_ANNOTATIONS | {
    names.NODE_POLICY,
    names.DEVICE_POLICY,
    names.SCORING_WEIGHTS,
    names.PACKING_WEIGHTS,
    names.CONVERTED_REQUEST,
    names.ALLOCATED_BY,
    names.DEVICE_CORDON,
    names.FENCE_PROVEN,
    names.HELD_CLAIMS,
}
"""Those that decisions go by; so these are in a snapshot."""
READ_ANNOTATIONS: Final = DECISION_ANNOTATIONS | {
    names.QUOTA_USED,
    names.NODE_LACKS,
    names.LEAVING_UNTIL,
    names.STALLED_DECISIONS,
}
MOST_LENGTH: Final = 2**14
"""Characters of one value; a request with every filter there is has 1,000."""
TOO_LONG: Final = f"(more than {MOST_LENGTH} characters)"
"""What stands in the place of a longer value: all readers refuse it, or say that they cannot read it."""
