"""What /metrics says of the cluster's cards, computed when Prometheus asks. Figures by driver are collectors of the registry; what has one
line per card or per pod is text in blocks, so that tens of thousands of cards do not hold up a decision.
"""
