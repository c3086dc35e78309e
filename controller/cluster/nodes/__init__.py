"""Nodes, their labels and what is counted per node, as columns that are updated by difference. Pure."""
