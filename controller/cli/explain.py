"""Say why a pod got its node and its devices, or why it gets none: the conclusion, every node with
its score split into terms, the runner-up and what it lost by, each policy and its origin. --devices
adds every device with the reason against it and the compared figures.

Reads the live cluster, or files such as those of hami-dra snapshot, and decides as if the pod had
no node yet; waiting pods do not count, except the other members of its gang (docs/gangs.md). With
--controller it shows the decision that the running controller made, if it is still stored. Notes go
to stderr.

How to read the nodes: they are compared by the vendors' value of the best set of devices (TOPOLOGY,
if any), then by what the pod prefers of nodes (PREFERS, if anything: kube-scheduler's scores, times
their weights), then by SCORE: binpack and fair-share prefer the highest, spread the lowest; the
lower name wins ties. The score of a node is 10 x used / total, before the pod; that of a device is
computed with the pod on it, times the weights. Under fair-share the score of a node is the sum of
the costs shown. See docs/explain.md.

Examples:
    hami-dra explain trainer-0 -n research
    hami-dra explain trainer-0 --devices
    hami-dra explain claim/trainer-0-gpu -n research -o json
    hami-dra slices --machine dgx-h100 --with-nodes -o yaml > n.yaml
    hami-dra explain -f n.yaml -f deviceclasses -f examples/nvidia one-numa-node
    hami-dra explain trainer-0 --node gpu-7 --node gpu-8
    hami-dra explain trainer-0 --controller http://localhost:8090

Exit status: 0 if there is an explanation, whatever the outcome; 2 on bad input, and if there is no
such pod or no decision on it.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controller.cli import completion_values as values
from controller.cli.connection import Connection, Files
from controller.cli.errors import CommandError
from controller.cli.explain_tables import Shown, drawn
from controller.cli.namespace_options import Namespace, check_namespace, pod_namespace
from controller.cli.output_options import Output, Printing
from controller.cli.tables import note
from controller.settings.placing import PresentPolicies, SimulatedScheduler
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    import ssl

    from controller.insight.simulation import SimulationSettings
    from controller.views.explanation import Explanation
    from hami_dra.api.core import Pod

CONTROLLER_VARIABLE: Final = "HAMI_DRA_CONTROLLER"
_PORT: Final = 8090
_PATIENCE: Final = 30.0


def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="POD|claim/NAME",
            help="NAME, NAMESPACE/NAME, or claim/NAME.",
            show_default=False,
            autocompletion=values.pods_and_claims,
        ),
    ],
    *,
    namespace: Namespace = None,
    devices: Annotated[bool, Option("Also show each device of the most relevant nodes, with its figures.")] = False,
    node: Annotated[
        tuple[str, ...], Option("Show the devices of this node; may be repeated.", metavar="NODE", values="nodes")
    ] = (),
    all_nodes: Annotated[bool, Option("List all nodes, not only the first 20.")] = False,
    printing: Printing,
    files: Files = (),
    controller: Annotated[
        str | None,
        Option(
            "Show the decision that the controller at this URL has stored, instead of computing it.",
            metavar="URL",
            envvar=CONTROLLER_VARIABLE,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Option("File with the token that the controller requires (kubectl create token).")
    ] = None,
    ca_file: Annotated[Path | None, Option("CA certificates (PEM) for an https:// controller.")] = None,
    policies: PresentPolicies,
    scheduler: SimulatedScheduler,
    connection: Connection,
) -> None:
    if not files:
        connection.check()
    from controller.cli.policy_options import simulation_settings

    kind, key = _target(target, lambda: pod_namespace(namespace, files, connection))
    if controller is None:
        found = _computed(files, connection, kind, key, simulation_settings(policies, scheduler))
    elif files:
        raise CommandError(
            "--controller: the controller keeps decisions of its own cluster; leave out -f or --controller"
        )
    else:
        import asyncio

        found = asyncio.run(_kept(controller, token_file, kind, key, ca_file=ca_file))
    shown = Shown(node, devices=devices or printing.output is Output.wide, all_nodes=all_nodes)
    if printing.output.is_table:
        _check_nodes(found, shown.nodes)
    chosen = [f"node/{found.node}"] if found.node else []
    printing.show(partial(drawn, found, shown), lambda: chosen, lambda: found)
    if printing.output.is_table and sys.stdout.isatty():
        _say_more(found, shown, live=controller is None and not files)


def _target(target: str, namespace: Callable[[], str]) -> tuple[str, str]:
    """Return (`pod` or `claim`, key); `namespace` is called where the target has none. Raises CommandError."""
    parts = target.split("/")
    kind = "pod"
    if len(parts) > 1 and parts[0] in _KINDS:
        kind = _KINDS[parts.pop(0)]
    if len(parts) == 2 and parts[0].lower() in _WORKLOADS:
        raise CommandError(f"{target}: name one of its pods (kubectl get pods), for each pod is decided on by itself")
    if len(parts) > 2 or not all(parts):
        raise CommandError(f"{target!r}: write NAME, NAMESPACE/NAME, claim/NAME or claim/NAMESPACE/NAME")
    return kind, "/".join(parts) if len(parts) == 2 else f"{namespace()}/{parts[0]}"


_KINDS: Final = {"pod": "pod", "pods": "pod", "claim": "claim", "resourceclaim": "claim", "resourceclaims": "claim"}
_WORKLOADS: Final = frozenset(
    f"{name}{ending}"
    for name in ("deploy", "deployment", "job", "statefulset", "daemonset", "replicaset", "cronjob")
    for ending in ("", "s", ".apps", ".batch")
) | {"sts", "ds", "rs", "cj"}
"""What kubectl users write before the name of a workload; a namespace of such a name needs `-n`."""


def _computed(
    files: tuple[Path, ...], connection: Connection, kind: str, key: str, settings: "SimulationSettings"
) -> "Explanation":
    """Compute the explanation from files or the live cluster. Raises InputError."""
    from controller.cli.policy_options import of_cluster
    from controller.cli.progress import Progress
    from controller.cli.state import read_versioned
    from controller.insight.explain import explain as compute
    from controller.insight.explain import of_unmanaged, with_gang, with_plan
    from controller.insight.simulation import NoSuchPod, question
    from controller.inventory import Heartbeat
    from controller.views.explanation import Explanation

    with Progress() as progress:
        state = read_versioned(files, connection, progress=progress)
        beat = partial(progress, "evaluating selectors", 0, 0)
        try:
            asked = question(state.documents, kind, key, of_cluster(settings, state), beat)
        except NoSuchPod:
            if not files:
                check_namespace(key.partition("/")[0], state.documents)
            raise
        for each in asked.notes:
            note(each)
        if asked.request is None:
            pod = asked.pod
            return Explanation(pod.key, pod.metadata.uid, "", "error", message=asked.problem, gang=asked.gang)
        if place := _present_place(asked.stored):
            note(f"{place}; what follows is where it would go now")
        if state.leaderless:
            note("no controller leads now: nothing is placed until one does; see hami-dra doctor")
        with asked.inventory.verdicts.within(Heartbeat(beat)):
            found = compute(asked.inventory, asked.request, asked.options)
            found = with_gang(of_unmanaged(found, asked.pod.spec.scheduler_name), asked.gang)
            if found.outcome == "refused":
                found = with_plan(found, asked.plan())
        return found


def _present_place(pod: "Pod") -> str:
    """Return where a pod is, in words; empty if it has no node."""
    from hami_dra.api.podstate import is_finished

    node = pod.spec.node_name
    if is_finished(pod):
        return f"it has finished ({pod.status.phase}){f' on {node}' if node else ''} and is never placed again"
    return f"it is on {node} already" if node else ""


async def _kept(
    url: str, token_file: Path | None, kind: str, key: str, *, ca_file: Path | None = None
) -> "Explanation":
    """Return the explanation that the controller has stored. Raises CommandError."""
    import aiohttp
    import msgspec

    from controller.views.explanation import from_json

    address = f"{url.rstrip('/')}/api/v1/explanations/{kind}s/{key}"
    headers = {"Accept": "application/json"}
    if token_file is not None:
        headers["Authorization"] = f"Bearer {_token(token_file)}"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE), trust_env=True) as session,
            session.get(address, headers=headers, ssl=_trusted(ca_file)) as answer,
        ):
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise CommandError(
            f"--controller: {address}: {error or 'no answer'}; "
            f"kubectl -n {names.SYSTEM_NAMESPACE} port-forward deployment/{names.CONTROLLER} {_PORT} reaches it"
        ) from error
    if status == 404:
        raise CommandError(
            f"the controller keeps no decision on {kind} {key}: it forgets old ones, and all when it starts, and of several "
            "replicas only the one that leads decides; leave out --controller to compute it now"
        )
    if status in {401, 403}:
        raise CommandError(
            f"--controller: {address}: answer {status}; give --token-file with the token of a user who may view the dashboard"
        )
    if status != 200:
        raise CommandError(f"--controller: {address}: answer {status}")
    try:
        return from_json(body)
    except msgspec.DecodeError as error:
        raise CommandError(f"--controller: {address}: the answer is not an explanation: {error}") from error


def _trusted(ca_file: Path | None) -> "ssl.SSLContext | bool":
    """Return the TLS settings; True: the machine's own trust store. Raises CommandError."""
    import ssl

    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"--ca-file: {ca_file}: {error}") from error


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CommandError(f"--token-file: {error}") from error
    if not token or not token.isascii() or any(map(str.isspace, token)):
        raise CommandError(f"--token-file: {path}: must contain one token, and nothing else")
    return token


def _check_nodes(found: "Explanation", nodes: Sequence[str]) -> None:
    known = {node.node for node in found.nodes}
    if unknown := [name for name in nodes if name not in known]:
        raise CommandError(f"--node: {', '.join(unknown)}: not among the nodes of the explanation; see --all-nodes")


def _say_more(found: "Explanation", shown: "Shown", *, live: bool) -> None:
    """Say on a terminal what else there is."""
    if not shown.devices and not shown.nodes and any(node.cards for node in found.nodes):
        note("--devices shows each device with its figures, --help how to read the table")
    if live:
        note(
            "computed now; for the decision that the controller made: "
            f"kubectl -n {names.SYSTEM_NAMESPACE} port-forward deployment/{names.CONTROLLER} {_PORT}, "
            f"then the same with --controller http://localhost:{_PORT}"
        )
