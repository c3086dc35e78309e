"""What the hardware reports while it works: memory in use, utilisation, temperature, power, errors. Read by the node driver."""
