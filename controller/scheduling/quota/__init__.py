"""ResourceQuota for cards: headroom (`headroom`), impossible pods (`admission`), usage (`model`)."""

from controller.scheduling.quota.model import QuotaLine, quota_lines

__all__ = [
    "QuotaLine",
    "quota_lines",
]
