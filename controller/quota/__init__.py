"""ResourceQuota for cards: headroom (`room`), impossible pods (`admission`), usage (`model`)."""
