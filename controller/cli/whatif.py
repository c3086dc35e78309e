"""Show the effects of a change: the placement of each pod, devices freed, nodes emptied, pods that
would not fit. Changes nothing.

Reads the live cluster, or files such as those of hami-dra snapshot. Running pods stay where they
are, except those of removed nodes; with --replace all pods that have devices are placed again, in
order of creation. The comparison is with the state reached without the change: pending pods are
placed in both. The first line has the conclusion. Notes go to stderr.

Examples:
    hami-dra whatif --device-policy binpack --replace
    hami-dra whatif --node-policy spread --override-annotations --replace
    hami-dra whatif --without-node gpu-7 -o json
    hami-dra snapshot --to monday.json
    hami-dra whatif -f monday.json --with more.yaml
    hami-dra whatif -f monday.json --with more.yaml --without-node gpu-7
    hami-dra whatif --preempt research/trainer-0
    hami-dra whatif -f monday.json --with urgent.yaml --preempt urgent

Exit status: 0 on success, 1 with --fail-unplaced if a pod would lose its node or a new one find
none, 2 on bad input.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace as replaced

from controller.cli.connection import Connection, Files
from controller.cli.errors import CommandError
from controller.cli.output_options import Printing
from controller.cli.tables import note
from controller.settings.placing import (
    PRESENT_DEVICE_POLICY,
    PRESENT_NODE_POLICY,
    PolicyOptions,
    PreemptionOptions,
    SimulatedScheduler,
)
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from controller.insight.whatif import Change
    from controller.views.comparison import Comparison


def whatif(
    *,
    files: Files = (),
    node_policy: Annotated[
        str | None, Option("Node policy instead of binpack, unless an annotation sets one.", values="node_policies")
    ] = None,
    device_policy: Annotated[
        str | None,
        Option(
            "Device policy instead of spread, unless an annotation sets one; first-fit (Kubernetes' own order) "
            "applies to all.",
            values="device_policies",
        ),
    ] = None,
    packing_weights: Annotated[
        str,
        Option(
            "Weights instead of theta=0.65,left=0.5,rare=0,large=0, unless an annotation sets others; for "
            "fair-share and scarce devices."
        ),
    ] = "",
    present_node_policy: Annotated[str, PRESENT_NODE_POLICY] = names.BINPACK,
    present_device_policy: Annotated[str, PRESENT_DEVICE_POLICY] = names.SPREAD,
    present_packing_weights: Annotated[
        str, Option("The controller's --packing-weights, if they are not the defaults.")
    ] = "",
    override_annotations: Annotated[
        bool, Option("Apply the given policies and weights even to pods that ask for others.")
    ] = False,
    additions: Annotated[
        tuple[Path, ...],
        Option("More pods or workloads, file or folder; may be repeated.", flags=("--with",), metavar="FILE"),
    ] = (),
    without_node: Annotated[
        tuple[str, ...], Option("A node to remove; may be repeated.", metavar="NODE", values="nodes")
    ] = (),
    replace: Annotated[bool, Option("Place all pods that have devices again, oldest first.")] = False,
    preempt: Annotated[
        tuple[str, ...],
        Option(
            "A waiting pod for which pods of lower priority may be evicted, NAMESPACE/NAME or the name of one in namespace "
            "default; for a gang one of its members; may be repeated.",
            metavar="POD",
        ),
    ] = (),
    preempting: PreemptionOptions,
    scheduler: SimulatedScheduler,
    printing: Printing,
    fail_unplaced: Annotated[
        bool, Option("Exit with status 1 if a pod loses its node or a new one finds none.")
    ] = False,
    connection: Connection,
) -> None:
    from controller.cli.policy_options import of_cluster, simulation_settings
    from controller.cli.progress import Progress
    from controller.cli.state import read_versioned
    from controller.insight.whatif import Change, compare
    from hami_dra.kube.documents import read_documents

    present = PolicyOptions(present_node_policy, present_device_policy, present_packing_weights)
    changed = PolicyOptions(
        node_policy or present.node_policy,
        device_policy or present.device_policy,
        packing_weights or present.packing_weights,
    )
    present_settings = simulation_settings(present, scheduler, "--present-")
    change = Change(
        settings=replaced(simulation_settings(changed, scheduler), exceeds_budgets=preempting.preemption_pdb),
        present=present_settings,
        policies=_policies(node_policy, device_policy, packing_weights),
        override=override_annotations,
        additions=tuple(read_documents(additions)),
        without_nodes=tuple(dict.fromkeys(without_node)),
        replace=replace,
        preemptors=tuple(dict.fromkeys(pod if "/" in pod else f"default/{pod}" for pod in preempt)),
    )
    _check(change)
    with Progress() as progress:
        state = read_versioned(files, connection, progress=progress)
        change = replaced(
            change,
            settings=of_cluster(change.settings, state),
            present=of_cluster(present_settings, state),
        )
        found = compare(
            state.documents, change, lambda what, done, total: progress(f"placing pods {what}", done, total)
        )
    _print(found, printing)
    if fail_unplaced and found.lost:
        raise typer.Exit(1)


def _policies(node: str | None, device: str | None, weights: str) -> tuple[tuple[str, str], ...]:
    from controller.insight.whatif import DEVICE_AXIS, NODE_AXIS, WEIGHTS_AXIS

    said = ((NODE_AXIS, node), (DEVICE_AXIS, device), (WEIGHTS_AXIS, weights or None))
    return tuple((axis, value) for axis, value in said if value is not None)


def _check(change: "Change") -> None:
    """Check the options before a cluster is read."""
    if change.override and not change.policies:
        raise CommandError(
            "--override-annotations: give the overriding --node-policy, --device-policy or --packing-weights"
        )
    if change.is_nothing:
        raise CommandError(
            "the change is empty: give one or more of --node-policy, --device-policy, --packing-weights, --with, "
            "--without-node, --replace, --preempt"
        )


def _print(found: "Comparison", printing: Printing) -> None:
    from controller.cli.whatif_tables import comparison

    for text in found.notes:
        note(text)
    pods = (*(each.pod for each in found.moved), *(each.pod for each in found.placed))
    named = dict.fromkeys(f"pod/{pod}" for pod in (*pods, *(each.pod for each in found.unplaced)))
    printing.show(partial(comparison, found), lambda: named, lambda: found)
