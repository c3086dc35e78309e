"""Checks of allocations: leaked claims, devices allocated twice, waiting pods, quotas without effect."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from controller.insight.doctor.model import Finding, State
from controller.insight.doctor.phrases import in_words, older
from controller.inventory import DeviceId
from controller.reasons import PLUGINS
from controller.reconcile.repair import ClaimAllocationUse, overlaps
from controller.reconcile.runtime import patches
from controller.views.overview import Tenancies
from hami_dra.api import names
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import has_our_gate, is_bound, is_done, is_leaving, is_pending, other_gates
from hami_dra.api.printable import some
from hami_dra.api.times import elapsed

_ORPHANED: Final = timedelta(minutes=3)
"""The controller itself frees an unused allocation after one minute."""
_STUCK: Final = timedelta(minutes=5)
_WAITING: Final = timedelta(minutes=5)
_SHOWN: Final = 4
_FILTERS: Final = frozenset(PLUGINS)
"""Reason codes of kube-scheduler's filter plugins."""


def claims(state: State) -> Iterator[Finding]:
    """Check the claims that this installation allocated; all others are ignored."""
    used = {key for pod in state.objects.pods if not is_done(pod) for key in claim_keys(pod)}
    there = {pod.key for pod in state.objects.pods}
    for claim in state.objects.claims:
        if not patches.is_ours(claim, state.installation.name):
            continue
        allocation = claim.status.allocation
        since = allocation.allocation_timestamp if allocation is not None else None
        consumers = [each for each in claim.status.reserved_for if each.resource == "pods"]
        ghosts = [each.name for each in consumers if f"{claim.metadata.namespace}/{each.name}" not in there]
        waits = older(since, state.now, _ORPHANED)
        what = f"ResourceClaim {claim.key}"
        if claim.metadata.deletion_timestamp and older(claim.metadata.deletion_timestamp, state.now, _STUCK):
            yield Finding.error(
                what,
                f"it has been on its way out for {in_words(elapsed(claim.metadata.deletion_timestamp, state.now))}",
                "check that kube-controller-manager runs: it frees the claim when its pods are gone",
            )
        elif consumers and len(ghosts) == len(claim.status.reserved_for) and waits:
            yield Finding.error(
                what,
                f"it is reserved for {', '.join(ghosts[:_SHOWN])}, which does not exist: no other pod can use its devices",
                "check that kube-controller-manager runs: it removes such reservations",
            )
        elif not claim.status.reserved_for and claim.key not in used and waits:
            yield Finding.error(
                what,
                "it is allocated, and no pod uses it: no other pod can use its devices",
                "check that the controller runs: it frees such claims after a minute; or kubectl delete "
                f"resourceclaim -n {claim.metadata.namespace} {claim.metadata.name}",
            )
    yield from _vanished(state)


def _vanished(state: State) -> Iterator[Finding]:
    """Report claims deleted under pods that still hold their devices, and pods without their claims."""
    fix = (
        "delete these pods to free the devices; manifests/claim-policy.yaml keeps claims from being deleted under them"
    )
    reported: set[str] = set()
    for gone in state.inventory.vanished.all():
        reported |= {each.uid for each in gone.holders}
        holders = some([each.key for each in gone.holders]) or "a pod that is gone, or whose name is not known,"
        yield Finding.error(
            f"ResourceClaim {gone.key}",
            f"it is gone, and {holders} on node {gone.node} still holds {some(gone.devices)}: "
            "no other pod gets them, and they count for the namespace's quota",
            fix if gone.holders else f"see which containers of node {gone.node} use them, and restart its kubelet",
        )
    if state.live is None:
        return
    there = {claim.key for claim in state.objects.claims}
    for pod in state.objects.pods:
        missing = [key for key in claim_keys(pod) if key not in there]
        if missing and is_bound(pod) and not is_leaving(pod) and pod.metadata.uid not in reported:
            yield Finding.warning(
                f"Pod {pod.key}",
                f"it is on node {pod.spec.node_name}, and there is no ResourceClaim {some(missing)}: "
                "what it may still hold is not known until the node's driver tells (within some minutes)",
                fix,
            )


def devices(state: State) -> Iterator[Finding]:
    """Report overcommitted devices, devices held but not published, and foreign allocations on ours."""
    uses: dict[DeviceId, list[ClaimAllocationUse]] = defaultdict(list)
    for claim in state.objects.claims:
        for result in claim.results:
            uses[DeviceId(result.driver, result.pool, result.device)].append(ClaimAllocationUse(claim, (result,)))
    columns = state.inventory.devices
    for device, found in sorted(uses.items()):
        row = columns.row_of(device)
        totals = columns.device(row).totals if row >= 0 else None
        holders = [use for use in found if not all(result.admin_access for result in use.results)]
        if overlaps(holders, totals):
            yield Finding.error(
                f"Device {device}",
                f"it is overcommitted by {some(sorted({use.claim.key for use in holders}))}",
                "delete the pod of one of these claims; hami-dra's have an entry for the driver "
                f"{names.ALLOCATION_MARK} in status.allocation.devices.config",
            )
    for (driver, pool), counters in state.inventory.usage_columns.overdrawn().items():
        yield Finding.error(
            f"Pool {driver}/{pool}",
            f"more is drawn of {some(counters)} than there is: a device and parts of it are allocated at once",
            "hami-dra status shows their tenants; delete the pod of one",
        )
    tenancies = Tenancies(state.objects.claims, state.objects.pods)
    for device in sorted(tenancies.devices()):
        # an incomplete pool is reported elsewhere
        is_reported = f"pool {device.driver}/{device.pool}" in state.inventory.problems
        if columns.row_of(device) < 0 and not is_reported:
            tenants = tenancies.of(device, None)
            yield Finding.warning(
                f"Device {device}",
                f"{', '.join(f'{each.namespace}/{each.claim}' for each in tenants[:_SHOWN])} holds it, but no slice publishes it",
                "check that the node and its driver run; else delete the pods that hold it",
            )
    if state.installation.mode == "exclusive":
        yield from _taken_by_others(state, uses)


def _taken_by_others(state: State, uses: dict[DeviceId, list[ClaimAllocationUse]]) -> Iterator[Finding]:
    foreign: dict[str, set[str]] = defaultdict(set)
    for device, found in uses.items():
        for use in found:
            looks_on = all(result.admin_access for result in use.results)
            is_other = not looks_on and not patches.is_ours(use.claim, state.installation.name)
            if is_other and device.driver in state.installation.managed:
                foreign[use.claim.key].add(str(device))
    for key, taken in sorted(foreign.items()):
        yield Finding.warning(
            f"ResourceClaim {key}",
            f"another component allocated {some(sorted(taken))} to it: before the fence was up, or around it",
            "nothing, if it was before; else find who tolerates the fence, and apply manifests/fence-policy.yaml",
        )


def pods(state: State) -> Iterator[Finding]:
    """Check pods behind our gate, and those that no node may run, whatever cards are free."""
    judged = {each.pod: each for each in state.pending}
    for pod in state.objects.pods:
        if not is_pending(pod) or not older(pod.metadata.creation_timestamp, state.now, _WAITING):
            continue
        found = judged.get(pod.key)
        why = "; ".join(found.why) if found is not None and not (found.fits or found.allocated) else ""
        waited = in_words(elapsed(pod.metadata.creation_timestamp, state.now))
        fix = f"hami-dra explain {pod.metadata.name} -n {pod.metadata.namespace}"
        if not has_our_gate(pod):
            if found is not None and (found.held or (found.reasons and _FILTERS.issuperset(found.reasons))):
                problem = f"it has waited for {waited}, whatever devices are free: {why}"
                yield Finding.warning(f"Pod {pod.key}", problem, fix)
            continue
        problem = f"it has waited behind the gate {names.GATE} for {waited}"
        if others := other_gates(pod):
            problem += f", and behind {', '.join(others)}: nothing is decided until these are removed"
            fix = f"ask the owner of {others[0]}"
        else:
            problem += f": {why}" if why else ""
        yield Finding.warning(f"Pod {pod.key}", problem, fix)


def quotas(state: State) -> Iterator[Finding]:
    """Report unknown resource names (which limit nothing), unenforceable quotas, exceeded limits."""
    for title, problem in sorted(state.inventory.quotas.problems.items()):
        said, _, fix = problem.rpartition("; ")
        yield Finding.warning(title, said or problem, fix or "edit the quota")
    for line in state.inventory.quotas.lines():
        if line.used > line.hard:
            yield Finding.warning(
                f"ResourceQuota {line.namespace}/{line.quota}",
                f"{line.resource}: {line.used} of {line.hard} {line.unit} in use, more than the limit",
                "claims that were allocated before the quota keep what they have; delete pods, or raise the limit",
            )
