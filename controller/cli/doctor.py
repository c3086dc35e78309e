"""Diagnose hami-dra in a cluster, and say how to fix each problem. Changes nothing.

Checks Kubernetes' version and gates, the controller's lease, rights, fence, policies, webhook and
its certificate, leftovers, device classes, slices, device plugins, leaked claims, devices allocated
twice, waiting pods, pods that kube-scheduler refuses where their devices are, pods of other
schedulers, pods that were not converted, keys and claims without effect, quotas. With -f it runs
the checks that need no live cluster.

Exit status: 0 no errors (possibly warnings), 1 errors found, 2 the cluster could not be read.

Examples:
    hami-dra doctor
    hami-dra doctor -o json
    hami-dra doctor --install-namespace gpus --context production
    hami-dra doctor -f resourceslices/
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import replace

from controller.cli.connection import Connection, Files
from controller.cli.output_options import Output, OutputOption, Printing
from controller.cli.profile_options import driver_profiles
from controller.cli.tables import Line, TextLayout, counted, note, paragraph
from controller.settings.common import INSTALL_NAMESPACE_RENAMED, InstallNamespace, ManageProfile, Mode
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from controller.cli.doctor_reading import Read
    from controller.cli.seen import Seen
    from controller.insight.doctor import DoctorReport, InstallationSettings, Live, State
    from controller.insight.simulation import PendingPod
    from hami_dra.vendors.profiles import DriverProfiles

_INDENT: Final = " " * 9

RENAMED = INSTALL_NAMESPACE_RENAMED


def doctor(
    *,
    output: OutputOption = Output.table,
    mode: Annotated[
        Mode | None, Option("The controller's mode; default: read from its Deployment or its policies.")
    ] = None,
    manage: Annotated[
        tuple[str, ...],
        Option(
            "A driver that the controller manages in addition to hami-dra's own; may be repeated.", metavar="DRIVER"
        ),
    ] = (),
    manage_profile: ManageProfile = (),
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
    installation: Annotated[
        str, Option("The controller's --installation: claims of other installations are ignored.", metavar="NAME")
    ] = names.MANAGED_BY,
    files: Files = (),
    connection: Connection,
) -> None:
    import msgspec

    from controller.cli.progress import Progress

    if not files:
        connection.check()
    from controller.cli.doctor_reading import Read, read_live
    from controller.cli.seen import seen
    from controller.cli.state import ask_cluster
    from controller.insight.doctor import InstallationSettings, examine
    from hami_dra.kube.documents import read_documents

    profiles = driver_profiles(manage_profile)
    given = frozenset([*manage, *profiles.given])
    chosen = InstallationSettings(name=installation, namespace=install_namespace, managed=given)
    with Progress() as progress:
        if files:
            read = Read(read_documents(files))
        else:
            live = partial(read_live, namespace=install_namespace, progress=progress)
            read = ask_cluster(connection, live, any_version=True)
        state = _state(seen(read.documents, profiles), read, mode, chosen)
        pending = _pending(read, profiles, progress) if state.installation.mode == "exclusive" else ()
    report = examine(replace(state, pending=pending, notices=_notices(read, state)))
    Printing(output).show(
        partial(_lines, report),
        lambda: dict.fromkeys(_reference(each.object) for each in report.findings),
        lambda: {"healthy": report.healthy, **msgspec.to_builtins(report)},
    )
    if not report.healthy:
        raise typer.Exit(1)


def _pending(read: "Read", profiles: "DriverProfiles", progress: Any) -> "tuple[PendingPod, ...]":
    """Decide on the pods that wait. Raises BadManifest."""
    from controller.insight.simulation import SimulationSettings, pending_pods

    version = read.live.version if read.live is not None else None
    settings = SimulationSettings(
        profiles=profiles,
        kubernetes=None if version is None else (version.major, version.minor),
        scheduler_names=read.scheduler_names,
    )
    return pending_pods(read.documents, settings, on_pod=partial(progress, "deciding on pods")).pods


def _notices(read: "Read", state: "State") -> dict[str, tuple[str, ...]]:
    """Return what pods and workloads that do not run to their end yet say without effect."""
    from controller.webhook import Served, object_notices
    from hami_dra.api.core import Pod
    from hami_dra.api.podstate import is_done

    def offers(resource: str) -> bool:
        by_class = any(each.spec.extended_resource_name == resource for each in state.objects.classes)
        return by_class or bool(state.inventory.nodes.offers(resource).any())

    served = Served(resource=offers, gang_sources=read.gang_sources)
    done = {pod.key for pod in state.objects.pods if is_done(pod)}
    found = {}
    for raw in (*(each.raw for each in read.documents), *read.workloads):
        metadata = raw.get("metadata") or {}
        key = f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"
        if not (raw.get("kind") == Pod.__name__ and key in done) and (said := object_notices(raw, served)):
            found[f"{raw['kind']} {key}"] = said
    return found


def _state(found: "Seen", read: "Read", mode: Mode | None, installation: "InstallationSettings") -> "State":
    """Return the state. `installation`: what options say; the rest is detected."""
    from datetime import UTC, datetime

    from controller.insight.doctor import ClusterObjects, State
    from hami_dra.api import kinds
    from hami_dra.vendors.registry import OWN_DRIVERS

    for text in found.notes:
        note(text)
    now = datetime.now(UTC)
    return State(
        now=now if read.live is not None else found.taken(now),
        installation=replace(
            installation,
            mode=mode or read.mode or _guessed(read.live),
            managed=OWN_DRIVERS | installation.managed | read.managed,
            own_drivers=OWN_DRIVERS,
            scheduler_names=read.scheduler_names,
        ),
        objects=ClusterObjects(
            nodes=found.of(kinds.NODE),
            pods=found.of(kinds.POD),
            claims=found.of(kinds.RESOURCE_CLAIM),
            slices=found.of(kinds.RESOURCE_SLICE),
            classes=found.of(kinds.DEVICE_CLASS),
            taint_rules=found.of(kinds.DEVICE_TAINT_RULE),
            quotas=found.of(kinds.RESOURCE_QUOTA),
        ),
        inventory=found.inventory,
        live=read.live,
        unread=read.unread,
    )


def _guessed(live: "Live | None") -> Mode:
    """Return the mode, guessed: with a lease and without a fence policy, which exclusive mode has, native."""
    if live is None or live.admission is None or live.lease is None:
        return "exclusive"
    listed = {each["metadata"]["name"] for objects in live.admission.values() for each in objects}
    return "exclusive" if {names.FENCE_POLICY, names.GATE_POLICY} & listed else "native"


def _reference(what: str) -> str:
    """Return `pod/team/train` of `Pod team/train`."""
    kind, _, key = what.partition(" ")
    return f"{kind.lower()}/{key}" if key else kind


def _lines(report: "DoctorReport", layout: TextLayout) -> Iterator[Line]:
    """Yield the conclusion, each problem with its fix, and what could not be checked."""
    from controller.insight.doctor import Severity

    counts = Counter(finding.severity for finding in report.findings)
    checks = f"{counted(len(report.checked), 'check')} made"
    hints = f", {counted(counts[Severity.HINT], 'hint')}" if counts[Severity.HINT] else ""
    errors, warnings = (counted(counts[each], each.value) for each in (Severity.ERROR, Severity.WARNING))
    yield Line(f"{checks}: {errors}, {warnings}{hints}", "bold")
    colours = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.HINT: "dim"}
    for finding in report.findings:
        colour = colours[finding.severity]
        yield Line("")
        yield from paragraph(f"{finding.severity.value:9}{finding.check}: {finding.object}", layout, colour=colour)
        yield from paragraph(finding.problem, layout, indent=_INDENT)
        yield from paragraph(f"fix: {finding.fix}", layout, indent=_INDENT)
    if report.skipped:
        yield Line("")
    for check, why in report.skipped.items():
        made = "in part" if check in report.checked else "not made"
        yield from paragraph(f"{made:9}{check}: {why}", layout, colour="dim")
