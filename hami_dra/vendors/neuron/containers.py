"""The edits of a container with AWS Neuron devices: device nodes, and the numbers of its NeuronCores.

Called through the vendor registry. In: tenancies. Out: edits. Pure. `AWS_NEURON_VISIBLE_DEVICES` is
the variable that AWS' device plugin sets, and its OCI hook reads. Cores are numbered over all
devices of the machine: those of device d begin at d x cores per device (the flow of AWS' scheduler
extension, `--device=/dev/neuron1 --env NEURON_RT_VISIBLE_CORES=2,3`). An allocation counts cores
only; `assign` chooses them when the claim is prepared, and the driver keeps the choice with the
claim.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from hami_dra.api.containers import ContainerPlace, Edits, Host, Tenancy, Unpreparable
from hami_dra.topology.subsets import runs
from hami_dra.vendors.grants import (
    ByAmount,
    Grant,
    card_numbers,
    grants,
    listed,
    node_number,
    numbered_nodes,
    without_doubles,
)
from hami_dra.vendors.neuron.publish import NEURON_CORES, NeuronPublishing, core_count

VISIBLE: Final = "AWS_NEURON_VISIBLE_DEVICES"
VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
ASSIGNED: Final = "cores"
"""Key of an assignment: numbers inside the device, ascending: `0,1`."""


class NeuronContainers(ByAmount, of=NeuronPublishing):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
        """Return neighbouring cores if possible, in the smallest gap that holds them; else the lowest free ones."""
        card = tenancy.card
        total = core_count(card)
        wanted = tenancy.consumed.get(NEURON_CORES, total)
        taken = {core for other in held for core in _numbers(other)}
        free = [core for core in range(total) if core not in taken]
        if wanted > len(free):
            raise Unpreparable(
                f"card {card.index} ({card.uuid}): {wanted} NeuronCores are allocated, but {len(taken)} of its {total} are held "
                "by claims that are prepared already; delete the pods of one of them"
            )
        return {ASSIGNED: ",".join(str(core) for core in _best(free, wanted))}

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:  # noqa: ARG002
        held = grants(tenancies)
        env = {VISIBLE: card_numbers(held)}
        cores = [(holding.card, _cores(holding)) for holding in held]
        if any(len(own) < core_count(card) for card, own in cores):
            env[VISIBLE_CORES] = listed(
                str(node_number(card) * core_count(card) + core) for card, own in cores for core in own
            )
        return Edits(env=env, device_nodes=without_doubles(numbered_nodes(host, held, "/dev/neuron")))


def _best(free: Sequence[int], wanted: int) -> list[int]:
    fitting = sorted((run for run in runs(free) if len(run) >= wanted), key=lambda run: (len(run), run[0]))
    return fitting[0][:wanted] if fitting else list(free[:wanted])


def _cores(holding: Grant) -> list[int]:
    """Return numbers inside the device, ascending."""
    card = holding.card
    total = core_count(card)
    own: set[int] = set()
    for tenancy in holding.tenancies:
        if holding.whole or tenancy.consumed.get(NEURON_CORES, 0) >= total:
            return list(range(total))
        numbers = _numbers(tenancy.assigned)
        if not numbers or max(numbers) >= total:
            raise Unpreparable(
                f"card {card.index} ({card.uuid}): nothing says which of its {total} NeuronCores request {tenancy.request!r} "
                "has; the claim must be prepared again: delete its pod"
            )
        own |= numbers
    return sorted(own)


def _numbers(assigned: Mapping[str, str]) -> set[int]:
    return {int(core) for core in assigned.get(ASSIGNED, "").split(",") if core.isascii() and core.isdigit()}
