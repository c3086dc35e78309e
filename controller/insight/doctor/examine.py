"""Runs all checks over one state. Called by `hami-dra doctor`. In: a `State`. Out: a `DoctorReport`. Pure."""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.insight.doctor import (
    admission,
    allocations,
    cluster,
    hardware,
    leftovers,
    policies,
    waiting_pods,
)
from controller.insight.doctor.model import DoctorReport, Finding, Severity, State

_RANK: Final = {severity: place for place, severity in enumerate(Severity)}
_NO_CLUSTER: Final = "it needs the live cluster, and files were read"


class Check(Struct, frozen=True):
    name: str
    examine: Callable[[State], Iterable[Finding]]
    needs_live: bool = False
    exclusive: bool = False
    """Only in exclusive mode; `leftovers` reports what is left of it in native mode."""


CHECKS: Final = (
    Check("version", cluster.version, needs_live=True),
    Check("controller", cluster.controller, needs_live=True),
    Check("programs", cluster.programs, needs_live=True),
    Check("rights", cluster.rights, needs_live=True),
    Check("fence", admission.fence, exclusive=True),
    Check("policies", policies.policies, needs_live=True),
    Check("webhook", admission.webhook, needs_live=True),
    Check("leftovers", leftovers.leftovers),
    Check("classes", hardware.classes),
    Check("slices", hardware.slices),
    Check("device-plugin", hardware.device_plugins),
    Check("cliques", hardware.cliques),
    Check("containers", hardware.node_lacks),
    Check("claims", allocations.claims),
    Check("devices", allocations.devices),
    Check("pods", allocations.pods, exclusive=True),
    Check("refusals", waiting_pods.refusals, exclusive=True),
    Check("schedulers", waiting_pods.schedulers, exclusive=True),
    Check("unconverted", waiting_pods.unconverted),
    Check("notices", waiting_pods.notices),
    Check("quotas", allocations.quotas),
)


def examine(state: State) -> DoctorReport:
    findings: list[Finding] = []
    checked: list[str] = []
    skipped = dict(state.unread)
    for check in CHECKS:
        if check.needs_live and state.live is None:
            skipped[check.name] = _NO_CLUSTER
            continue
        if state.installation.mode == "exclusive" or not check.exclusive:
            findings += [replace(each, check=check.name) for each in check.examine(state)]
        checked.append(check.name)
    order = {check.name: place for place, check in enumerate(CHECKS)}
    findings.sort(key=lambda each: (_RANK[each.severity], order[each.check], each.object))
    return DoctorReport(findings=tuple(findings), checked=tuple(checked), skipped=skipped)
