"""AWS Neuron: whole devices in contiguous blocks, or some of their cores."""

from pathlib import Path

from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.neuron.containers import NeuronContainers
from hami_dra.vendors.neuron.legacy import NeuronLegacy
from hami_dra.vendors.neuron.publish import NeuronPublishing
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.neuron.rules import Neuron
from hami_dra.vendors.neuron.third_party import neuron_devices
from hami_dra.vendors.plugin import HostPath, VendorPlugin


def _backend(state_folder: Path | None) -> Backend:
    from hami_dra.vendors.neuron import discovery

    return discovery.backend(state_folder)


def _sampler(_backend: Backend) -> CardSampler:
    from hami_dra.vendors.neuron import monitor

    return monitor.NeuronSampler()


PLUGIN = VendorPlugin(
    title="AWS Neuron",
    parts="NeuronCores",
    host_paths=(HostPath(path="/opt/aws/neuron", purpose="neuron-ls"),),
    rules=Neuron(),
    publishing=NeuronPublishing(),
    containers=NeuronContainers(),
    legacy=NeuronLegacy(),
    backend=_backend,
    sampler=_sampler,
    record=NeuronRecord,
    imitations={"neuron.aws.com": neuron_devices},
)
