"""Metrics of the cluster's cards, computed at scrape time.

Figures by driver are collectors of the registry. Series for each card or pod are text in blocks, so
that tens of thousands of cards do not delay a decision.
"""
