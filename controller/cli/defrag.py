"""Plan moves of pods that free whole devices or nodes, or make room for a pod that waits.

A move is the eviction of a pod that its controller creates again; the new pod goes where hami-dra
places it then. Each move has its place once those before it are done, and no pod loses its place.
What is to become free is cordoned until all moves are done. The plan is proven by a simulation of
all of it, whose figures it has. Reads the live cluster, or files such as those of hami-dra
snapshot. Without a goal it says how fragmented the cluster is, and what a few moves would free.

Nothing is changed, unless --execute is given: then the plan is carried out, one pod after the
other, and stops at the first surprise. Only pods with the label hami.io/movable: "true", or in a
namespace that has it, are moved then.

Examples:
    hami-dra defrag
    hami-dra defrag --for research/trainer-0
    hami-dra defrag --whole-devices 4 --moves 10
    hami-dra defrag --free-nodes 2 --of-devices 8 -o json
    hami-dra snapshot --to monday.json
    hami-dra defrag -f monday.json --free-nodes 1
    kubectl label namespace research hami.io/movable=true
    hami-dra defrag --free-nodes 1 --execute

Exit status: 0 on success, 1 if the goal is not reached, 2 on bad input.
"""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace

from controller.cli.connection import Connection, Files
from controller.cli.errors import CommandError
from controller.cli.output_options import Printing
from controller.cli.tables import note
from controller.settings.placing import PresentPolicies, SimulatedScheduler
from hami_dra.api.flags import Form, Option, duration
from hami_dra.api.printable import escaped, listed

if TYPE_CHECKING:
    from controller.views.moves import MovePlan

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
    execute: Annotated[bool, Option("Carry the plan out; asks first.")] = False,
    yes: Annotated[bool, Option("Do not ask; required without a terminal.", flags=("-y", "--yes"))] = False,
    patience: Annotated[
        float, Option("How long a move may take, until the new pod is ready.", duration(least=1))
    ] = 900.0,
    policies: PresentPolicies,
    scheduler: SimulatedScheduler,
    printing: Printing,
    connection: Connection,
) -> None:
    from controller.cli.defrag_execution import released_in
    from controller.cli.policy_options import of_cluster, simulation_settings
    from controller.cli.progress import Progress
    from controller.cli.state import read_versioned
    from controller.insight.defrag import Goal, best_of_few, plan_moves

    goal = partial(Goal, moves=moves, labelled=execute)
    goals = [goal(pod=waiting if "/" in waiting else f"default/{waiting}")] if waiting else []
    goals += [goal(devices=whole_devices)] if whole_devices is not None else []
    goals += [goal(nodes=free_nodes, least=of_devices)] if free_nodes is not None else []
    if len(goals) > 1:
        raise CommandError("give one of --for, --whole-devices and --free-nodes")
    if of_devices > 1 and goals and free_nodes is None:
        raise CommandError("--of-devices: it counts nodes, so give --free-nodes with it")
    if execute:
        _check_execution(is_live=not files, has_goal=bool(goals), asks=not yes)
    settings = simulation_settings(policies, scheduler)
    with Progress() as progress:
        state = read_versioned(files, connection, progress=progress)
        settings = replace(of_cluster(settings, state), preemption=False)
        documents, held = released_in(state.documents)
        if goals:
            found = plan_moves(documents if execute else state.documents, settings, goals[0], progress)
        else:
            found = best_of_few(state.documents, settings, moves or FEW, of_devices, progress)
    if held:
        runs = "cordoned by a run of defrag --execute that goes on, or was killed; the next one takes over"
        note(f"{listed(held, FEW)}: {runs}")
    _print(found, printing)
    is_reached = not goals or found.is_reached
    if execute:
        # of what cannot be reached no move is made, and what an earlier run holds is given back
        carried = found if is_reached else replace(found, moves=(), held_nodes=(), held_devices=())
        if carried.moves or held:
            _execute(carried, connection, patience, asks=not yes)
    if not is_reached:
        if execute:
            note("the goal is not reached, so no pod was moved")
        raise typer.Exit(1)


def _execute(plan: "MovePlan", connection: Connection, patience: float, *, asks: bool) -> None:
    from controller.cli.defrag_execution import unholdable
    from controller.cli.service import run_service

    if device := unholdable(plan):
        raise CommandError(f"--execute: the driver of {device} cordons no devices; carry the plan out by hand")
    if asks and not typer.confirm("Move these pods?" if plan.moves else "Give back what is cordoned?"):
        raise typer.Exit(1)
    problems = ["interrupted"]
    run_service(_carry_out(connection, plan, patience, problems))
    if problems:
        raise typer.Exit(1)
    if plan.moves:
        typer.echo(f"all moves are done: {len(plan.moves)}", err=True)


def _check_execution(*, is_live: bool, has_goal: bool, asks: bool) -> None:
    if not is_live:
        raise CommandError("--execute: it moves pods of a live cluster, so leave out -f")
    if not has_goal:
        raise CommandError("--execute: give a goal: --for, --whole-devices or --free-nodes")
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("--execute asks first, and stdin or stdout is no terminal: nothing was moved. Give --yes")


async def _carry_out(connection: Connection, plan: "MovePlan", patience: float, problems: list[str]) -> None:
    """Let the problems be those that are left at the end, and print them."""
    from controller.cli.defrag_execution import Execution

    def say(line: str) -> None:
        typer.echo(escaped(line), err=True)

    async with connection.open() as cluster:
        execution = Execution(cluster, plan, say, patience=patience)
        problem = "interrupted"
        try:
            problem = await execution.run()
            problems[:] = [each for each in (problem, execution.left) if each]
        finally:
            if problems:
                takes_over = f"{execution.left}; the next run takes it over"
                rest = takes_over if execution.left else "This run holds nothing any more"
                say(f"stopped: {problem or 'all moves are done'}. {rest}; plan again")


def _print(found: "MovePlan", printing: Printing) -> None:
    from controller.cli.defrag_tables import plan

    for text in found.notes:
        note(text)
    printing.show(partial(plan, found), lambda: [f"pod/{each.pod}" for each in found.moves], lambda: found)
