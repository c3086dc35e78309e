"""From an allocated claim to the devices of its containers, and back: the node's half of DRA behind
kubelet's calls.
"""
