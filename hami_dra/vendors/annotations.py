"""Every annotation that a Struct of this project keeps: all others are dropped where objects are decoded.

Read by `hami_dra.kube.decoding` and by snapshots. Programs that read whole objects as JSON (the
webhook, `convert`) do not use this module. To read another annotation of a decoded object, add it
to `names.ANNOTATIONS`, or to those of its vendor.
"""

from collections.abc import Mapping
from typing import Final

from hami_dra.api import names
from hami_dra.vendors.registry import PREFERENCE_ANNOTATIONS

_POLICIES: Final = names.annotations_read(names.Read.POLICY)
DECISION_ANNOTATIONS: Final = names.annotations_read(names.Read.DECISION) | PREFERENCE_ANNOTATIONS
"""Annotations that affect decisions, which are therefore in a snapshot."""
USER_ANNOTATIONS: Final = names.annotations_read(names.Read.USER) | PREFERENCE_ANNOTATIONS
"""Annotations that people write on pods, claims, templates and classes to choose how hami-dra places them."""
READ_ANNOTATIONS: Final = names.ANNOTATIONS.keys() | PREFERENCE_ANNOTATIONS
TENANT_ANNOTATIONS: Final = names.annotations_read(names.Read.TENANT) | PREFERENCE_ANNOTATIONS
"""Annotations that are read of a pod, claim or template."""
MOST_LENGTH: Final = 2**14
"""Characters of one value; a request with every filter there is has 1,000."""
MOST_OF_TENANT: Final = 2**13
"""Characters of all values that are kept of one pod, claim or template, because a tenant chooses how many there are."""
MOST_OF_POLICY: Final = 2**8
"""Characters of a policy or of weights; a list of every policy there is has half as many."""
TOO_LONG: Final = "(too long)"
"""Replaces a longer value: all readers refuse it, or report that they cannot read it."""


def kept_annotations(annotations: Mapping[str, str], *, of_tenant: bool) -> dict[str, str]:
    """Return the annotations in use, by name. A value that is too long is replaced by `TOO_LONG`.

    `of_tenant`: of a pod, claim or template. Then the values may have `MOST_OF_TENANT` characters
    in all, and those that come after that are `TOO_LONG` as well.

        >>> value = "x" * 5_000
        >>> kept = kept_annotations({"nvidia.com/use-gputype": value, "nvidia.com/use-gpuuuid": value, "a": "b"}, of_tenant=True)
        >>> [(name, len(value)) for name, value in kept.items()]
        [('nvidia.com/use-gputype', 5000), ('nvidia.com/use-gpuuuid', 10)]
    """
    left = MOST_OF_TENANT if of_tenant else len(READ_ANNOTATIONS) * MOST_LENGTH
    kept: dict[str, str] = {}
    for name in sorted((TENANT_ANNOTATIONS if of_tenant else READ_ANNOTATIONS).intersection(annotations)):
        value = annotations[name]
        most = MOST_OF_POLICY if name in _POLICIES else MOST_LENGTH
        if len(value) > min(most, left):
            value = TOO_LONG
        left -= min(len(value), left)
        kept[name] = value
    return kept
