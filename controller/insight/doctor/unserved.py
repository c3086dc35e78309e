"""Pods that hami-dra does not place: they name another scheduler, or their cards were not converted
to claims; and what pods and workloads say without effect. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from controller.allocation import FeatureGates, Owner, ownership_of
from controller.insight.doctor.model import Finding, State
from controller.insight.doctor.phrases import some
from controller.webhook import bypassed
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_pending, is_probe
from hami_dra.api.served_pods import asks_for_hami_dra, unserved_parts


def schedulers(state: State) -> Iterator[Finding]:
    """Report pods that want managed devices and belong to a scheduler that hami-dra does not serve."""
    if state.installation.mode != "exclusive":
        return
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
