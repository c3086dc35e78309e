"""Access to the cluster: a protocol, two adapters, local copies, leader election."""
