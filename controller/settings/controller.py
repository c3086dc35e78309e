"""Settings of the controller that need nothing that decides; `controller.reconcile.runtime` has the others.

All durations are seconds. Constraints between them are checked here (and in `Timings`), so that a
mistake prevents the start (ConfigError).
"""

import ipaddress
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from controller.settings.common import InstallNamespace
from hami_dra.api import names
from hami_dra.api.errors import ConfigError
from hami_dra.api.flags import IMAGE, INSTALLATION, LAST_PORT, ON_OFF, Form, Option, duration, one_of_two
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.kube.lease_timings import MOST_WRITE_SECONDS, Timings


class QueueingSettings(Struct, frozen=True):
    """How long pods wait for each thing that may let them be placed."""

    gate_patience: Annotated[
        float, Option("How long an unschedulable pod keeps the gate; autoscalers see it afterwards.", duration(least=0))
    ] = 10.0
    gang_hold: Annotated[
        float,
        Option(
            "How long waiting members of a gang keep their devices when another one was refused and some run already.",
            duration(least=0),
        ),
    ] = 120.0
    nomination_patience: float = 60.0
    """How long a pod waits for the node that kube-scheduler is emptying for it."""
    refusal_time: float = 30.0
    """How long a node stays refused for a pod the first time; doubles each time up to `refusal_time_most`."""
    refusal_time_most: float = 600.0
    reconsider: float = 300.0
    """An unschedulable pod is evaluated again after this time even if nothing happened."""
    room_retry_first: float = 0.02
    """Least time between tries of equal pods after changes that may help; doubles up to `room_retry_most`."""
    room_retry_most: float = 1.0
    turn_cost: float = 0.0005
    """Least CPU seconds that an evaluation of a pod counts for its namespace."""


class BindingSettings(Struct, frozen=True):
    """How decisions are written."""

    installation: Annotated[
        str,
        Option(
            "Name that the allocations of this controller carry; it never touches those of another installation.",
            INSTALLATION,
            metavar="NAME",
        ),
    ] = names.MANAGED_BY
    commits_at_once: int = 64
    slow_commits_at_once: int = 8
    """Commits of one namespace, for a minute after one of its commits has taken longer than the write timeout."""
    retry_first: float = 1.0
    """Pause of a pod after a failed commit; doubles each time up to `retry_most`."""
    retry_most: float = 60.0
    """Also the pause after an internal error."""

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError."""
        if self.commits_at_once < 1:
            raise ConfigError(f"commits at once: at least 1, not {self.commits_at_once}")


class FenceSettings(Struct, frozen=True):
    """How the fence is kept and proved."""

    quiet_time: Annotated[
        float, Option("How long nothing is committed after the fence was created or restored.", duration())
    ] = 10.0
    probe: Annotated[bool, Option("Verify with a probe claim that the fence holds before committing.")] = True
    probe_namespace: str = names.PROBE_NAMESPACE
    """Namespace of the probe's pod and claim, and of nothing else."""
    probe_image: Annotated[
        str,
        Option(
            "Image of the probe pod, which never runs while the fence holds; the policy controller-probe.hami.io names it, too.",
            IMAGE,
        ),
    ] = names.PROBE_IMAGE
    probe_timeout: float = 60.0


class RepairSettings(Struct, frozen=True):
    """When allocations are undone or freed."""

    unschedulable_timeout: Annotated[
        float, Option("How long kube-scheduler may refuse a pod before its allocation is undone.", duration(least=1))
    ] = 15.0
    silent_factor: float = 4.0
    """Multiple of that time if the pod's condition is that of the commit: kube-scheduler may not have tried."""
    settle_time: float = 1.0
    """How long to wait for kube-scheduler's nomination of a node after it undid an allocation."""
    sweep_interval: float = 1.0
    """Time between two checks of all pods that are not on the node of their allocation."""
    orphan_age: Annotated[
        float,
        Option(
            "How long an allocation may exist without a pod that refers to it, before it is freed.", duration(least=1)
        ),
    ] = 60.0

    @property
    def silent_timeout(self) -> float:
        return self.unschedulable_timeout * self.silent_factor

    @property
    def orphan_interval(self) -> float:
        return self.orphan_age / 6


class ObservabilitySettings(Struct, frozen=True):
    """What is reported, and how often."""

    identity: str = names.CONTROLLER
    """Reporter of events."""
    event_interval: Annotated[
        float,
        Option("Minimum time between two warnings about a pod that differ only in their figures.", duration(least=0)),
    ] = 30.0
    quota_interval: float = 5.0
    """Least time between two updates of the usage annotation of quotas."""
    card_metrics: Annotated[
        bool, Option("Export a series for each device, and for each pod that holds part of it, on /metrics.")
    ] = True
    legacy_metrics: Annotated[
        frozenset[NameSet],
        Option(
            "Also export them under HAMi's names: hami (hami_gpu_*), hami-2.7 (GPUDeviceMemoryLimit, ...); may be repeated.",
            metavar="NAMES",
        ),
    ] = frozenset()


class LeadershipSettings(Struct, frozen=True):
    """How one replica is chosen to act, and when it gives up."""

    namespace: InstallNamespace = names.SYSTEM_NAMESPACE
    """Namespace of the lease, and of hami-dra's own pods."""
    leader_election: Annotated[
        bool,
        Option(
            "Act only while holding the lease; switch it off only for a single replica.",
            flags=("--leader-elect/--no-leader-elect",),
        ),
    ] = True
    lease_name: str = names.CONTROLLER
    lease: Timings = field(default_factory=Timings)
    stall_limit: Annotated[
        float,
        Option(
            "How long one decision may hold up the controller before it hands over to another replica, which holds that "
            "pod back; after 1.5 times as long /healthz fails.",
            duration(1, 600),
        ),
    ] = 20.0

    @property
    def unhealthy_after(self) -> float:
        """Return how long the main loop may be stalled before /healthz reports it."""
        return 1.5 * self.stall_limit

    @property
    def loop_limit(self) -> float:
        """Return the limit for other work: higher, because listing a large cluster is slow on a busy machine."""
        return 3 * self.stall_limit

    @property
    def write_timeout(self) -> float:
        return self.lease.write_timeout

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError."""
        if self.write_timeout > MOST_WRITE_SECONDS:
            raise ConfigError(f"write timeout {self.write_timeout:g} s: at most {MOST_WRITE_SECONDS:g} s")
        if self.stall_limit <= 0:
            raise ConfigError(f"stall limit {self.stall_limit:g} s: it must be above 0")


def parse_bind(text: str) -> tuple[str, int]:
    """Parse `127.0.0.1:8090`, `[::1]:8090`, `:8090` (every address); nothing: no host. Raises ValueError."""
    if not text:
        return "", 0
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > LAST_PORT:
        raise ValueError(f"{text!r}: write HOST:PORT, for example 127.0.0.1:8090")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104 (explicitly requested)


class DashboardSettings(Struct, frozen=True):
    """The dashboard, where it has an address. Raises ConfigError if the options contradict each other."""

    bind: Annotated[
        tuple[str, int],
        Option(
            "Address of the dashboard, for example 127.0.0.1:8090; empty: no dashboard.",
            Form(read=parse_bind, write=lambda _no_host: ""),
            flags=("--dashboard-bind",),
            metavar="HOST:PORT",
        ),
    ] = ("", 0)
    """Host and port; no host: no dashboard. Port 0: any free one."""
    auth: Annotated[
        bool,
        Option(
            "Authentication: cluster uses TokenReview and SubjectAccessReview; off disables it, on loopback only.",
            one_of_two("cluster", "off"),
            flags=("--dashboard-auth",),
        ),
    ] = True
    cert_file: Annotated[
        Path | None, Option("The dashboard's certificate (PEM), for HTTPS.", flags=("--dashboard-cert",))
    ] = None
    key_file: Annotated[Path | None, Option("Its key.", flags=("--dashboard-key",))] = None
    readings: Annotated[
        bool,
        Option(
            "on: while a dashboard page is open, read the devices' actual use from the node drivers' metrics port.",
            ON_OFF,
            flags=("--dashboard-readings",),
        ),
    ] = True
    grafana: Annotated[
        str,
        Option(
            "A Grafana dashboard that every page of the dashboard links to.",
            flags=("--dashboard-grafana",),
            metavar="URL",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if not self.bind[0]:
            return
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("--dashboard-cert and --dashboard-key belong together: give both or neither")
        if self.grafana and not self.grafana.startswith(("https://", "http://")):
            raise ConfigError(f"--dashboard-grafana: {self.grafana!r}: write an address that begins with https://")
        if not self.auth and not _is_loopback(self.bind[0]):
            raise ConfigError(
                f"--dashboard-auth=off: everyone who reaches {self.bind[0]} could view it; "
                "only with --dashboard-bind on 127.0.0.1, [::1] or localhost"
            )

    @property
    def is_https(self) -> bool:
        return self.cert_file is not None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
