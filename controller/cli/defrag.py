"""`hami-dra defrag`: moves of pods that free whole devices or nodes, or make room for a pod that waits."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace

from controller.cli.connection import Connection, Files
from controller.cli.errors import CommandError
from controller.cli.output_options import Printing
from controller.cli.tables import note
from controller.settings.placing import PresentPolicies, SimulatedScheduler
from hami_dra.api.flags import Form, Option

if TYPE_CHECKING:
    from controller.views.moves import MovePlan

HELP = """Plan moves of pods that free whole devices or nodes, or make room for a pod that waits. Changes nothing.

A move is the eviction of a pod that its controller creates again; the new pod goes where hami-dra places it
then. Each move has its place once those before it are done, and no pod loses its place. What is to become
free is cordoned until all moves are done. The plan is proven by a simulation of all of it, whose figures it
has. Reads the live cluster, or files such as those of hami-dra snapshot. Without a goal it says how
fragmented the cluster is, and what a few moves would free.

Examples:
    hami-dra defrag
    hami-dra defrag --for research/trainer-0
    hami-dra defrag --whole-devices 4 --moves 10
    hami-dra defrag --free-nodes 2 --of-devices 8 -o json
    hami-dra snapshot --to monday.json
    hami-dra defrag -f monday.json --free-nodes 1

Exit status: 0 on success, 1 if the goal is not reached, 2 on bad input.
"""

FEW: Final = 10
"""Moves that are tried without a goal."""
_POSITIVE: Final = Form(least=1)


def defrag(
    *,
    files: Files = (),
    waiting: Annotated[
        str,
        Option(
            "Make room for this waiting pod, NAMESPACE/NAME or the name of one in namespace default; for a gang one of "
            "its members.",
            flags=("--for",),
            metavar="POD",
        ),
    ] = "",
    whole_devices: Annotated[
        int | None, Option("Free this number of devices more, each as a whole.", _POSITIVE, metavar="N")
    ] = None,
    free_nodes: Annotated[
        int | None, Option("Free all devices of this number of nodes more.", _POSITIVE, metavar="N")
    ] = None,
    of_devices: Annotated[
        int, Option("Count only nodes with this number of devices or more.", _POSITIVE, metavar="N")
    ] = 1,
    moves: Annotated[int | None, Option("Move no more than this number of pods.", _POSITIVE, metavar="N")] = None,
    policies: PresentPolicies,
    scheduler: SimulatedScheduler,
    printing: Printing,
    connection: Connection,
) -> None:
    from controller.cli.policy_options import of_cluster, simulation_settings
    from controller.cli.progress import Progress
    from controller.cli.state import read_versioned
    from controller.insight.defrag import Goal, best_of_few, plan_moves

    goals = [Goal(pod=waiting if "/" in waiting else f"default/{waiting}", moves=moves)] if waiting else []
    goals += [Goal(devices=whole_devices, moves=moves)] if whole_devices is not None else []
    goals += [Goal(nodes=free_nodes, least=of_devices, moves=moves)] if free_nodes is not None else []
    if len(goals) > 1:
        raise CommandError("give one of --for, --whole-devices and --free-nodes")
    if of_devices > 1 and goals and free_nodes is None:
        raise CommandError("--of-devices: it counts nodes, so give --free-nodes with it")
    settings = simulation_settings(policies, scheduler)
    with Progress() as progress:
        state = read_versioned(files, connection, progress=progress)
        settings = replace(of_cluster(settings, state), preemption=False)
        if goals:
            found = plan_moves(state.documents, settings, goals[0], progress)
        else:
            found = best_of_few(state.documents, settings, moves or FEW, of_devices, progress)
    _print(found, printing)
    if goals and not found.is_reached:
        raise typer.Exit(1)


def _print(found: "MovePlan", printing: Printing) -> None:
    from controller.cli.defrag_tables import plan

    for text in found.notes:
        note(text)
    printing.show(partial(plan, found), lambda: [f"pod/{each.pod}" for each in found.moves], lambda: found)
