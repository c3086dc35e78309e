"""Checks of the prerequisites: Kubernetes' version, APIs and gates; a leader; the accounts' rights."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from controller.insight.doctor.installed import is_out
from controller.insight.doctor.model import Finding, Right, Severity, State
from controller.insight.doctor.phrases import in_words
from controller.reconcile.runtime import uninstalling_until
from hami_dra.api import names
from hami_dra.api.printable import some
from hami_dra.api.times import elapsed
from hami_dra.kube.requirements import MINIMUM

NEEDED_GATES: Final = {
    "DynamicResourceAllocation": "no claims exist without it",
    "DRAConsumableCapacity": "devices cannot be shared without it",
    "DRADeviceTaints": "the fence, and devices out of service, are taints on devices",
}
USEFUL_GATES: Final = {
    "DRAPartitionableDevices": "MIG instances cannot be allocated without it",
    "DRAPrioritizedList": "claims with firstAvailable are refused without it",
    "DRAAdminAccess": "monitoring pods cannot access devices in use without it",
    "DRAResourceClaimDeviceStatus": "the claim's status cannot report the pod's devices without it",
}
_LEASE_MARGIN: Final = timedelta(seconds=5)


def version(state: State) -> Iterator[Finding]:
    live = state.cluster
    found = live.version.git_version or f"{live.version.major}.{live.version.minor}"
    minimum = ".".join(map(str, MINIMUM))
    if not live.version.at_least(*MINIMUM):
        yield Finding.error(
            "Kubernetes",
            f"it is {found}, and hami-dra needs {minimum} or newer",
            f"upgrade the control plane to {minimum} or newer",
        )
    foreign = sorted(state.installation.managed - state.installation.own_drivers)
    if state.installation.mode == "exclusive" and foreign and not live.serves_taint_rules:
        yield Finding.error(
            "Kubernetes",
            f"it serves no DeviceTaintRule, so kube-scheduler cannot be kept off the devices of {', '.join(foreign)}",
            "switch on the feature gate DRADeviceTaintRules and the API resource.k8s.io/v1beta2 (1.36), use 1.37, or run the "
            "controller without --manage",
        )
    for gate, why in {**NEEDED_GATES, **USEFUL_GATES}.items():
        if live.gates is not None and live.gates.get(gate) is False:
            yield Finding.of(
                Severity.ERROR if gate in NEEDED_GATES else Severity.WARNING,
                "kube-apiserver",
                f"the feature gate {gate} is off: {why}",
                f"start kube-apiserver, kube-scheduler, kube-controller-manager and kubelet with --feature-gates={gate}=true",
            )


def controller(state: State) -> Iterator[Finding]:
    live = state.cluster
    if not live.lease_known:
        return
    if is_out(state):
        yield Finding.warning(
            f"Namespace {state.installation.namespace}",
            "hami-dra is not installed here",
            "install it (docs/install.md), or give its namespace: --install-namespace",
        )
        return
    title = f"Lease {state.installation.namespace}/{names.CONTROLLER}"
    start = (
        f"kubectl -n {state.installation.namespace} get pods,events; start it, or install hami-dra (docs/install.md)"
    )
    if live.lease is None:
        yield Finding.error(title, "it does not exist: no controller runs here, and no devices are allocated", start)
        return
    until = uninstalling_until(live.lease)
    if until is not None and until > state.now:
        yield Finding.warning(
            title,
            f"hami-dra uninstall is at work: no controller acts before {until:%H:%M:%S} UTC",
            "wait until then, or to keep hami-dra: kubectl -n "
            f"{state.installation.namespace} annotate lease hami-dra-controller hami.io/leaving-until-",
        )
        return
    spec = live.lease.spec
    if not spec.holder_identity:
        yield Finding.error(title, "it has no holder: no controller leads", start)
        return
    silent = elapsed(spec.renew_time, state.now)
    most = timedelta(seconds=spec.lease_duration_seconds or 15) + _LEASE_MARGIN
    if not live.lease_moved and (silent is None or silent > most):
        yield Finding.error(
            title, f"{spec.holder_identity} has not renewed it for {in_words(silent)}: no controller leads", start
        )


def programs(state: State) -> Iterator[Finding]:
    """Check that the pods of the installation's Deployments and DaemonSets are ready."""
    live = state.cluster
    for each in live.programs:
        if each.ready < each.wanted:
            yield Finding.of(
                Severity.WARNING if each.ready else Severity.ERROR,
                f"{each.kind} {state.installation.namespace}/{each.name}",
                f"{each.ready} of its {each.wanted} pods are ready",
                f"kubectl -n {state.installation.namespace} describe {each.kind.lower()} {each.name}; "
                f"kubectl -n {state.installation.namespace} get pods,events",
            )


def rights(state: State) -> Iterator[Finding]:
    live = state.cluster
    denied: dict[tuple[str, str], list[Right]] = defaultdict(list)
    for right in () if is_out(state) else live.rights or ():
        if not right.allowed:
            denied[right.account, right.manifest].append(right)
    for (account, manifest), missing in sorted(denied.items()):
        yield Finding.error(
            f"ServiceAccount {state.installation.namespace}/{account}",
            f"it may not {some(missing)}",
            f"kubectl apply -f manifests/{manifest}, or upgrade the Helm release",
        )
