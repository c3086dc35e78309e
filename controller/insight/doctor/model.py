"""Input and output of the doctor. Plain values.

`State` is collected by `controller.cli.doctor_reading` or by tests; checks
(`controller.insight.doctor.checks`) only read it. JSON of a `DoctorReport` has camelCase names.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from controller.insight.simulation import PendingPod
from controller.inventory import Inventory
from controller.settings.common import Mode
from hami_dra.api import names
from hami_dra.api.core import Lease, Node, Pod, ResourceQuota
from hami_dra.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from hami_dra.kube.protocol import ServerVersion

Raw = dict[str, Any]


class Severity(StrEnum):
    ERROR = "error"
    """Something does not work, or two pods may get the same device."""
    WARNING = "warning"
    """It works now, but needs attention."""
    HINT = "hint"
    """It works as it is configured; something useful is off."""


class Finding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    check: str
    """Name of the check: `fence`, `webhook`, ..."""
    severity: Severity
    object: str
    """Kind and key: `Pod team/train`."""
    problem: str
    fix: str
    """What to do, as a command if there is one."""

    @classmethod
    def of(cls, severity: Severity, what: str, problem: str, fix: str) -> "Finding":
        """Return a finding of the check that runs, whose name `examine` adds. `what`: kind and key of the object."""
        return cls(check="", severity=severity, object=what, problem=problem, fix=fix)

    @classmethod
    def error(cls, what: str, problem: str, fix: str) -> "Finding":
        return cls.of(Severity.ERROR, what, problem, fix)

    @classmethod
    def warning(cls, what: str, problem: str, fix: str) -> "Finding":
        return cls.of(Severity.WARNING, what, problem, fix)


class DoctorReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    findings: tuple[Finding, ...]
    """Errors first, then warnings, then hints; each in the order of the checks."""
    checked: tuple[str, ...]
    """Names of the checks that ran."""
    skipped: dict[str, str]
    """Check → why it did not run, or not completely."""

    @property
    def healthy(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


class Right(Struct, frozen=True, kw_only=True):
    """One right that a shipped manifest grants to a ServiceAccount, and the API server's verdict on it."""

    account: str
    """Name of the ServiceAccount."""
    manifest: str
    """File in manifests/ that grants it."""
    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    """Empty: in the whole cluster."""
    allowed: bool = True

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what += f".{self.group}" if self.group else ""
        return f"{self.verb} {what}" + (f" {self.name}" if self.name else "")


class WebhookSeen(Struct, frozen=True, kw_only=True):
    """Facts about the webhook beyond its configuration."""

    expected: bool
    """Its ServiceAccount exists, so it was installed."""
    own_certificate: bool = True
    """There is a Secret for a webhook that issues its own certificates."""
    certificate_from: Literal["self", "helm", "files"] = "self"
    """What issues its certificates: itself, an authority of Helm's, or someone else."""
    certificate: bytes | None = None
    """The serving certificate (PEM) from its Secret; None: not read."""
    certificates_checked: bool = True
    """False: what checks certificates is not installed (the extra `controller`)."""
    conversion: str | None = None
    """Result of a dry-run creation of a legacy pod: empty = converted, else what went wrong; None: not tried."""
    missing_runtime_classes: Mapping[str, str] = field(default_factory=dict)
    """Vendor → the RuntimeClass named by the webhook's Deployment, if it does not exist."""


class Program(Struct, frozen=True, kw_only=True):
    """A Deployment or DaemonSet of the installation. `wanted` and `ready` are numbers of pods."""

    kind: str
    name: str
    wanted: int
    ready: int


class Live(Struct, frozen=True, kw_only=True):
    """Facts that only a live cluster provides. A part that could not be read is None; `State.unread` says why."""

    version: ServerVersion
    serves_taint_rules: bool
    gates: Mapping[str, bool] | None = None
    """Feature gates of the API server."""
    admission: Mapping[str, tuple[Raw, ...]] | None = None
    """Kind → its objects as JSON: policies, bindings, webhook configurations, regardless of their origin."""
    lease: Lease | None = None
    """The controller's lease; None: there is none."""
    lease_known: bool = True
    lease_moved: bool = False
    """It was renewed during the examination: there is a leader, whatever the clocks say."""
    rights: tuple[Right, ...] | None = None
    webhook: WebhookSeen | None = None
    programs: tuple[Program, ...] = ()


class InstallationSettings(Struct, frozen=True, kw_only=True):
    """How hami-dra is set up in the cluster, as options and its Deployments say."""

    mode: Mode = "exclusive"
    managed: frozenset[str] = frozenset()
    """Drivers whose devices the controller allocates, or, in native mode, accounts for."""
    own_drivers: frozenset[str] = frozenset()
    """Those of them that hami-dra brings along."""
    name: str = names.MANAGED_BY
    """The controller's `--installation`, which its allocations carry."""
    namespace: str = names.SYSTEM_NAMESPACE
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    """Schedulers whose pods the controller places."""


class ClusterObjects(Struct, frozen=True, kw_only=True):
    """The objects that were read, by kind."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()


class State(Struct, frozen=True, kw_only=True):
    now: datetime
    installation: InstallationSettings
    objects: ClusterObjects
    inventory: Inventory
    """Made of `objects`."""
    live: Live | None = None
    """None: files were read."""
    pending: tuple[PendingPod, ...] = ()
    """Why pods wait, each decided on alone."""
    notices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`Kind namespace/name` → what it says without effect (`controller.webhook.notices`)."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Name of a check → why its input could not be read."""

    @property
    def cluster(self) -> Live:
        """The live cluster, for checks that need one (`Check.needs_live`)."""
        assert self.live is not None
        return self.live
