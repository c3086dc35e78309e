"""Live readings of the hardware: memory in use, utilisation, temperature, power, errors. Read by the node driver."""
