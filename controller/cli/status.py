"""Show the devices of the cluster: memory, cores and shares in use, health, and the pods that hold them.

Reads the cluster, or files such as those of hami-dra snapshot; changes nothing. Needs the rights of
the ClusterRole hami-dra-viewer.

Examples:
    hami-dra status
    hami-dra status --by node --vendor nvidia
    hami-dra status --by namespace -o json
    hami-dra status --node node-1 -w
    hami-dra status -l pool=a100 -o wide
    hami-dra status --quota -A
    hami-dra status --pending -n team-a
    hami-dra status --usage -n team-a
    hami-dra status -f resourceslices/
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

from controller.cli.connection import Connection, Files
from controller.cli.errors import CommandError
from controller.cli.label_options import label_matcher
from controller.cli.namespace_options import AllNamespaces, Namespace, check_namespace, listed_namespace
from controller.cli.output_options import Printing
from controller.cli.profile_options import driver_profiles
from controller.cli.status_view import By, Selection
from controller.cli.tables import note
from controller.settings.common import InstallNamespace, ManageProfile, SchedulerNames
from controller.settings.placing import DEFAULT_SCHEDULER
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from controller.cli.progress import OnProgress
    from controller.cli.state import VersionedState
    from controller.insight.simulation import PendingPods
    from hami_dra.api.core import Pod
    from hami_dra.vendors.profiles import DriverProfiles

RENAMED = {"--driver-namespace": "--install-namespace", "--by card": "device"}


def status(
    *,
    by: Annotated[By, Option("One line for each of these.")] = By.device,
    quota: Annotated[bool, Option("Show how much of the quotas for devices is used.")] = False,
    pending: Annotated[bool, Option("Show the pods that wait for devices and what each of them waits for.")] = False,
    usage: Annotated[
        bool,
        Option(
            "Also show what containers use of shared devices, as node drivers report it (needs the right get pods/proxy)."
        ),
    ] = False,
    vendor: Annotated[
        tuple[str, ...],
        Option(
            "Only devices of this vendor (nvidia, metax, ...), or of this driver; may be repeated.",
            metavar="VENDOR",
            values="vendors",
        ),
    ] = (),
    node: Annotated[
        tuple[str, ...], Option("Only devices of this node; may be repeated.", metavar="NODE", values="nodes")
    ] = (),
    selector: Annotated[
        str,
        Option(
            "Only devices of nodes with these labels; with --pending, pods.",
            flags=("-l", "--selector"),
            metavar="LABELS",
        ),
    ] = "",
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    printing: Printing,
    watching: Annotated[
        bool, Option("Keep showing changes until Ctrl-C; with -o json, a line for each.", flags=("-w", "--watch"))
    ] = False,
    scheduler_name: SchedulerNames = DEFAULT_SCHEDULER,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
    manage_profile: ManageProfile = (),
    files: Files = (),
    connection: Connection,
) -> None:
    _check(watching=watching, pending=pending, usage=usage, has_files=bool(files))
    listed = None
    if quota or pending:
        listed = listed_namespace(namespace, files, connection, all_namespaces=all_namespaces)
    wanted = Selection(
        by=by,
        vendors=vendor,
        nodes=node,
        labels="" if pending else selector,
        namespace=namespace,
        quota=quota,
        listed=listed,
    )
    if watching:
        from controller.cli.status_watch import watch

        watch(wanted, connection, printing, driver_profiles(manage_profile), install_namespace)
        return
    if not files:
        connection.check()
    profiles = driver_profiles(manage_profile)
    from controller.cli.leadership import held_places
    from controller.cli.progress import Progress
    from controller.cli.seen import seen
    from controller.cli.state import SHOWN, VersionedState, ask_cluster, read_state, read_versioned
    from hami_dra.api import kinds

    with Progress() as progress:
        if pending:
            found = read_versioned(files, connection, progress=progress)
        else:
            found = VersionedState(read_state(files, connection, progress=progress, wanted=SHOWN), None)
        check_namespace(namespace, found.documents)
        state = seen(found.documents, profiles)
        meant = _meant(state.of(kinds.POD), listed, selector)
        judged = _pending(found, meant, scheduler_name, profiles, progress) if pending else None
    for text in state.notes:
        note(text)
    pods = state.of(kinds.POD)
    held = () if files else ask_cluster(connection, partial(held_places, namespace=install_namespace), any_version=True)
    view = wanted.of(
        state.inventory, state.of(kinds.RESOURCE_CLAIM), pods, state.of(kinds.NODE), state.gang_of(), held_places=held
    )
    view.pending = judged
    if files:
        view.now = state.taken(view.now)
    if usage:
        from controller.cli.container_usage import read_usage, used_cards

        view.used = used_cards(view.overview, read_usage(connection, install_namespace), namespace)
    printing.show(view.lines, view.names, view.document)


def _check(*, watching: bool, pending: bool, usage: bool, has_files: bool) -> None:
    """Raise CommandError for options that exclude each other."""
    if watching and has_files:
        raise CommandError("--watch needs a live cluster, because files do not change: leave out --watch or -f")
    if watching and pending:
        raise CommandError("--pending decides on every pod that waits: leave out --watch")
    if usage and (watching or has_files):
        raise CommandError("--usage asks the drivers of a live cluster once: leave out --watch and -f")


def _meant(pods: "Iterable[Pod]", namespace: str | None, selector: str) -> "Callable[[str], bool]":
    """Return whether --pending is about the pod of this key."""
    if not selector:
        return lambda key: namespace is None or key.startswith(f"{namespace}/")
    matches = label_matcher(selector)
    keys = {pod.key for pod in pods if namespace in {None, pod.metadata.namespace} and matches(pod.metadata.labels)}
    return keys.__contains__


def _pending(
    found: "VersionedState",
    meant: "Callable[[str], bool]",
    scheduler_names: frozenset[str],
    profiles: "DriverProfiles",
    progress: "OnProgress",
) -> "PendingPods":
    """Decide on the pods that wait. Raises BadManifest."""
    from controller.insight.simulation import SimulationSettings, pending_pods

    settings = SimulationSettings(
        profiles=profiles, kubernetes=found.kubernetes, gang_sources=found.gang_sources, scheduler_names=scheduler_names
    )
    on_pod = partial(progress, "deciding on pods")
    return pending_pods(found.documents, settings, may_be_meant=meant, on_pod=on_pod)
