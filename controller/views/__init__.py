"""What people and programs see of a cluster, as plain values: the columns of tables."""
