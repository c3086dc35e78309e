"""What the doctor is told and what it says. Plain values.

`State` is collected by `hami_dra.cli.doctor_reading` or by tests; checks (`controller.doctor.checks`) only read it. JSON of a
`Report` has camelCase names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from controller.inventory.inventory import Inventory
from hami_dra.api import names
from hami_dra.api.core import Lease, Node, Pod, ResourceQuota
from hami_dra.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from hami_dra.cluster.protocol import ServerVersion

Raw = dict[str, Any]
Mode = Literal["exclusive", "native"]


class Severity(StrEnum):
    ERROR = "error"
    """Something does not work, or two may get what is one's."""
    WARNING = "warning"
    """It works now, and somebody should look at it."""


class Finding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    check: str
    """Name of the check: `fence`, `webhook`, ..."""
    severity: Severity
    object: str
    """Kind and key: `Pod team/train`."""
    problem: str
    fix: str
    """What to do, as a command where there is one."""


class Report(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    findings: tuple[Finding, ...]
    """Errors first, then in the order of the checks."""
    checked: tuple[str, ...]
    """Names of the checks that were made."""
    skipped: dict[str, str]
    """Check → why it could not be made, or not in full."""

    @property
    def healthy(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One thing that a ServiceAccount must be allowed, by a shipped manifest, and what the API server says of it."""

    account: str
    """Name of the ServiceAccount."""
    manifest: str
    """File in manifests/ that gives it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSeen:
    """What was found out about the webhook beyond its configuration."""

    expected: bool
    """Its ServiceAccount is there: somebody installed it."""
    own_certificate: bool = True
    """There is a Secret for a webhook that makes its certificates itself."""
    certificate: bytes | None = None
    """PEM of what it serves with, from its Secret; None: not read."""
    conversion: str | None = None
    """What became of a legacy pod that was sent to be dry-run: empty = converted, else what went wrong; None: not tried."""
    missing_runtime_classes: Mapping[str, str] = field(default_factory=dict)
    """Vendor → the RuntimeClass that the webhook's Deployment names for its pods, and that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What only a living cluster can say. A part that could not be read is None; why is in `State.unread`."""

    version: ServerVersion
    serves_taint_rules: bool
    gates: Mapping[str, bool] | None = None
    """Feature gates of the API server."""
    admission: Mapping[str, tuple[Raw, ...]] | None = None
    """Kind → its objects, as JSON: policies, bindings, webhook configurations, whoever made them."""
    lease: Lease | None = None
    """The controller's; None: there is none."""
    lease_known: bool = True
    lease_moved: bool = False
    """It was renewed while we looked: whatever clocks say, somebody leads."""
    rights: tuple[Right, ...] | None = None
    webhook: WebhookSeen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    now: datetime
    inventory: Inventory
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    live: Live | None = None
    """None: files were read."""
    mode: Mode = "exclusive"
    managed: frozenset[str] = frozenset()
    """Drivers whose devices the controller allocates, or, in native mode, accounts for."""
    own_drivers: frozenset[str] = frozenset()
    installation: str = names.MANAGED_BY
    namespace: str = names.SYSTEM_NAMESPACE
    unread: Mapping[str, str] = field(default_factory=dict)
    """Name of a check → why what it needs could not be read."""
