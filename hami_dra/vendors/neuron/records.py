"""The record of one AWS Neuron card, as discovery finds it."""

from hami_dra.api.hardware import DrivenCard


class NeuronRecord(DrivenCard, frozen=True, kw_only=True):
    """An AWS Neuron device."""

    cores: int
    """Physical NeuronCores."""
    logical_cores: int
    """NeuronCores as the runtime numbers them; fewer than `cores` if it joins several into one (LNC on Trainium2)."""
    architecture: str = ""
    """`NDv2`."""
    instance_type: str = ""
    """As the kernel driver reports it."""
