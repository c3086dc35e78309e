"""AWS Neuron: whole devices in contiguous blocks, or some of their cores."""

from hami_dra.vendors.neuron.containers import NeuronContainers
from hami_dra.vendors.neuron.legacy import NeuronLegacy
from hami_dra.vendors.neuron.publish import NeuronPublishing
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.neuron.rules import Neuron
from hami_dra.vendors.neuron.third_party import neuron_devices
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported

PLUGIN = VendorPlugin(
    title="AWS Neuron",
    parts="NeuronCores",
    host_paths=(HostPath(path="/opt/aws/neuron", purpose="neuron-ls"),),
    rules=Neuron(),
    publishing=NeuronPublishing(),
    containers=NeuronContainers(),
    legacy=NeuronLegacy(),
    backend=imported("hami_dra.vendors.neuron.discovery:backend"),
    sampler=imported("hami_dra.vendors.neuron.monitor:NeuronSampler", arguments=0),
    record=NeuronRecord,
    imitations={"neuron.aws.com": neuron_devices},
)
