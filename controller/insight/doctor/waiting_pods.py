"""Pods that kube-scheduler does not bind where hami-dra has chosen their devices, and the plugin or
profile that keeps them away; pods that hami-dra does not place: they name another scheduler, or their
cards were not converted to claims; and what pods and workloads say without effect. Pure.

hami-dra knows the filter plugins of the default profile. What is left comes from a profile of its
own (`addedAffinity`), an extender or a plugin out of tree: only the administrator can name it
to hami-dra, so the finding quotes kube-scheduler.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from controller.allocation import FeatureGates, Owner, ownership_of
from controller.insight.doctor.model import Finding, State
from controller.insight.doctor.phrases import older
from controller.reconcile.runtime import patches
from controller.webhook import bypassed
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_pending, is_probe, is_unschedulable, scheduled_condition
from hami_dra.api.printable import some
from hami_dra.api.resource import ResourceClaim
from hami_dra.api.served_pods import asks_for_hami_dra, unserved_parts

_BY_WORDS: Final = (
    ("scheduler-enforced node affinity", "NodeAffinity, by the profile's addedAffinity"),
    ("Pod's node affinity/selector", "NodeAffinity"),
    ("untolerated taint", "TaintToleration"),
    ("were unschedulable", "NodeUnschedulable"),
    ("free ports for the requested pod ports", "NodePorts"),
    ("Insufficient ", "NodeResourcesFit"),
    ("Too many pods", "NodeResourcesFit"),
    ("pod topology spread constraints", "PodTopologySpread"),
    ("affinity rules", "InterPodAffinity"),
    ("no available volume zone", "VolumeZone"),
    ("max volume count", "NodeVolumeLimits"),
    ("persistent volumes to bind", "VolumeBinding"),
    ("volume node affinity conflict", "VolumeBinding"),
    ("enough free storage", "VolumeBinding"),
    ("non-existent", "VolumeBinding"),
    ("no available disk", "VolumeRestrictions"),
    ("ReadWriteOncePod", "VolumeRestrictions"),
)
"""Words of kube-scheduler's default plugins (its `ErrReason...`), and the plugin."""
_DEVICES: Final = ("resourceclaim not available", "cannot allocate all claims")
"""Words of DynamicResources: all other nodes are refused by it, as the devices are on one."""
_USUAL: Final = timedelta(seconds=10)
"""An allocation that is younger may not have been looked at yet; what was said before is old."""


def refusals(state: State) -> Iterator[Finding]:
    """Report pods that have devices on a node and are refused there."""
    claims = {claim.key: claim for claim in state.objects.claims if patches.is_ours(claim, state.installation.name)}
    for pod in state.objects.pods:
        condition = scheduled_condition(pod)
        if condition is None or not (is_pending(pod) and is_unschedulable(pod)):
            continue
        held = [claims[key] for key in claim_keys(pod) if key in claims]
        nodes = {patches.pinned_node(claim) for claim in held if _is_settled(claim, state)} - {""}
        if not nodes or not (reasons := _reasons(condition.message)):
            continue
        plugins = {plugin for words, plugin in _BY_WORDS if any(words in reason for reason in reasons)}
        profile = pod.spec.scheduler_name
        refused_by = f"plugin {', '.join(sorted(plugins))}" if plugins else "a plugin out of tree or an extender"
        yield Finding.warning(
            f"Pod {pod.key}",
            f"its devices are allocated on node {', '.join(sorted(nodes))}, and kube-scheduler refuses it there: "
            f"{refused_by} of the profile {profile}; it says: {'; '.join(reasons)}",
            f"look at the profile {profile} in kube-scheduler's configuration (pluginConfig, extenders): write what it "
            "demands of nodes into the pods too, as node affinity, so that hami-dra knows it",
        )


def _is_settled(claim: ResourceClaim, state: State) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and older(allocation.allocation_timestamp, state.now, _USUAL)


def _reasons(message: str) -> list[str]:
    """Return the reasons of a message of kube-scheduler, less those about devices.

    >>> _reasons("0/3 nodes are available: 1 Insufficient cpu, 2 resourceclaim not available on the node. preemption: x")
    ['1 Insufficient cpu']
    """
    _, _, listed = message.partition(" nodes are available: ")
    found, _, _ = listed.partition(" preemption: ")
    return [each for each in found.rstrip(". ").split(", ") if each and not any(words in each for words in _DEVICES)]


def schedulers(state: State) -> Iterator[Finding]:
    """Report pods that want managed devices and belong to a scheduler that hami-dra does not serve."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in state.objects.pods:
        if pod.spec.resource_claims and is_pending(pod) and not is_probe(pod):
            scheduler, served = pod.spec.scheduler_name, state.installation.scheduler_names
            if scheduler not in served and _wants_managed_devices(pod, state):
                found[unserved_parts(scheduler, served)].append(pod.key)
    for (problem, fix), keys in found.items():
        yield _warning("Pod", keys, f"it gets no devices: {problem}", fix)


def unconverted(state: State) -> Iterator[Finding]:
    """Report pods that wait for cards by resource names that no device plugin or DeviceClass serves."""
    offered = {
        name for node in state.objects.nodes for name, amount in node.status.allocatable.items() if str(amount) != "0"
    }
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in state.objects.pods:
        if parts := bypassed(pod, native=state.installation.mode == "native", offered=offered):
            found[parts].append(pod.key)
    for (problem, fix), keys in found.items():
        yield _warning("Pod", keys, problem, fix)


def notices(state: State) -> Iterator[Finding]:
    """Report keys, claims and resource names without effect, each sentence once."""
    found: dict[str, list[str]] = defaultdict(list)
    for about, sentences in state.notices.items():
        for sentence in sentences:
            found[sentence].append(about)
    for sentence, objects in found.items():
        fix = "change the object, or the manifest that it comes from (hami-dra convert -f FILE says the same)"
        yield _warning("", objects, sentence, fix)


def _wants_managed_devices(pod: Pod, state: State) -> bool:
    if asks_for_hami_dra(pod.metadata.labels, pod.metadata.annotations):
        return True
    wanted = set(claim_keys(pod))
    claims = [claim for claim in state.objects.claims if claim.key in wanted and claim.status.allocation is None]
    owners = (
        ownership_of(state.inventory, claim, state.installation.managed, FeatureGates()).owner for claim in claims
    )
    return any(owner in (Owner.MANAGED, Owner.MIXED) for owner in owners)


def _warning(kind: str, keys: Iterable[str], problem: str, fix: str) -> Finding:
    return Finding.warning(f"{kind} {some(sorted(keys), 1)}".strip(), problem, fix)
