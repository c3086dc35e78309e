"""Leftovers of exclusive mode: after a switch to native mode, or after a removal by hand.

In native mode the controller removes them itself, so leftovers that stay mean that no controller
runs.
"""

from collections import Counter
from collections.abc import Iterator

from controller.insight.doctor.installed import is_out, named
from controller.insight.doctor.model import Finding, State
from controller.reconcile.fence import carries_fence, is_fence_rule
from hami_dra.api import kinds, names
from hami_dra.api.podstate import has_our_gate, is_live

_UNINSTALL = "hami-dra uninstall"


def leftovers(state: State) -> Iterator[Finding]:
    out = is_out(state)
    if out or state.installation.mode == "native":
        why = "hami-dra is gone" if out else "in native mode there should be none"
        yield from _fence(state, why, out=out)
        yield from _gates(state, why, out=out)
        if not out:
            yield from _policies(state)


def _fence(state: State, why: str, *, out: bool) -> Iterator[Finding]:
    for rule in state.objects.taint_rules:
        if is_fence_rule(rule):
            yield Finding.error(
                f"DeviceTaintRule {rule.metadata.name}",
                f"a fence rule is left, and {why}: kube-scheduler cannot allocate these devices",
                _UNINSTALL if out else "restart the controller: in native mode it removes them when it starts",
            )
    fenced = Counter(item.spec.driver for item in state.objects.slices if carries_fence(item))
    for driver, count in sorted(fenced.items()):
        yield Finding.error(
            f"ResourceSlices of {driver}",
            f"{count} of them carry the fence taint, and {why}: kube-scheduler cannot allocate their devices",
            f"run the drivers with --mode native, or remove them, then kubectl delete resourceslices "
            f"--field-selector spec.driver={driver}",
        )


def _gates(state: State, why: str, *, out: bool) -> Iterator[Finding]:
    for pod in state.objects.pods:
        if has_our_gate(pod) and is_live(pod):
            yield Finding.error(
                f"Pod {pod.key}",
                f"the gate {names.GATE} is on, and {why}: no controller removes it",
                _UNINSTALL if out else "check that the controller runs: it removes such gates at once",
            )


def _policies(state: State) -> Iterator[Finding]:
    for name, kind in (
        (names.FENCE_POLICY, kinds.VALIDATING_POLICY.name),
        (names.GATE_POLICY, kinds.MUTATING_POLICY.name),
        (names.PROTECT_POLICY, kinds.MUTATING_POLICY.name),
    ):
        if state.live is not None and named(state.live, kind, name) is not None:
            yield Finding.error(
                f"{kind} {name}",
                "it belongs to exclusive mode",
                f"kubectl delete {kind.lower()} {name}, and its binding; or upgrade the Helm release with mode=native",
            )
