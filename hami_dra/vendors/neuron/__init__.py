"""AWS Neuron: whole devices in contiguous blocks, or some of their cores."""

from hami_dra.vendors.protocol import DriverProfile, Vendor

DRIVER = "neuron.hami.io"


class Neuron(Vendor):
    """The rules of `neuron.hami.io`."""

    name = "neuron"
    profile = DriverProfile(driver=DRIVER, memory=None, cores="neuroncores", shares=None)
