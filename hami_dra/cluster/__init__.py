"""The cluster as the rest of the project sees it: a protocol, two adapters, local copies, leader election."""
