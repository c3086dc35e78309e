"""The cluster as columns, and nothing that judges: nodes, the pods on them, volumes. Pure."""
