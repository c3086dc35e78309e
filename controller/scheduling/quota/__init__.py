"""ResourceQuota for cards: headroom (`headroom`), impossible pods (`admission`), usage
(`model`).
"""
