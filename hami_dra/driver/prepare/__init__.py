"""From an allocated claim to what its containers get, and back: the node's half of DRA behind kubelet's calls."""
