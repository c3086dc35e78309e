"""authorization.k8s.io: access reviews. They are created and answered, but never stored or applied.

They are therefore not among the kinds of manifests.
"""

from typing import Final

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object, Struct


class AccessStatus(Struct, frozen=True):
    allowed: bool = False
    reason: str = ""


class AccessReview(Object, frozen=True):
    status: AccessStatus = AccessStatus()


SUBJECT_ACCESS_REVIEW: Final = Kind(
    "SubjectAccessReview", "authorization.k8s.io", "v1", "subjectaccessreviews", False, AccessReview
)
