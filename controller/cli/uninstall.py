"""Remove hami-dra from a cluster: admission policies and webhook, then scheduling gates, the fence,
probes, annotations and finalizers.

Running pods keep their devices; kube-scheduler allocates pending claims again. You can run it any
number of times. A controller that still runs pauses meanwhile, and for ten minutes more: remove it
in that time. If hami-dra runs in another namespace than --install-namespace, nothing is changed.

Nothing is removed before everything has been listed. An object that cannot be read or written does
not stop the rest: it is named, and the exit status is 2 at the end. It lists everything and asks
first; where stdin or stdout is no terminal it needs --yes. With --gates-only it only stops gating
and releases the gated pods: fence, policies and controllers stay.

Examples:
    hami-dra uninstall --dry-run
    hami-dra uninstall --yes
    hami-dra uninstall --gates-only
    hami-dra uninstall --install-namespace gpus --context production
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.settings.common import INSTALL_NAMESPACE_RENAMED, InstallNamespace
from hami_dra.api import names
from hami_dra.api.flags import Option
from hami_dra.api.printable import escaped

if TYPE_CHECKING:
    from controller.reconcile.repair import Plan

RENAMED = INSTALL_NAMESPACE_RENAMED


def uninstall(
    *,
    connection: Connection,
    dry_run: Annotated[bool, Option("List what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, Option("Do not ask; required without a terminal.", flags=("-y", "--yes"))] = False,
    gates_only: Annotated[bool, Option("Only stop gating and release the gated pods; everything else stays.")] = False,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile.repair import Plan
    from hami_dra.kube.credentials import cluster_title

    plan = Plan(namespace=install_namespace, gates_only=gates_only)
    asks = not (yes or dry_run)
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError(
            "uninstall asks first, and stdin or stdout is no terminal: nothing was removed. To see what it would remove: "
            "hami-dra uninstall --dry-run. To remove it: hami-dra uninstall --yes"
        )
    title = cluster_title(connection.kubeconfig, connection.context)
    typer.echo(f"cluster: {escaped(title)}")
    if dry_run or asks:
        run_service(_list(connection, plan))
    if dry_run:
        return
    if asks and not typer.confirm("Remove all of this?"):
        typer.echo("nothing was removed")
        raise typer.Exit(1)
    run_service(_run(connection, plan))


async def _list(connection: Connection, plan: "Plan") -> None:
    """Print what `_run` would remove. Raises ClusterError, RunsElsewhere."""
    from controller.reconcile.repair import to_remove

    async with connection.open() as cluster:
        found = await to_remove(cluster, plan)
    if not found:
        typer.echo("no gate of hami-dra is left" if plan.gates_only else "nothing of hami-dra is left in this cluster")
        return
    typer.echo("this removes:" if plan.gates_only else "an uninstall removes:")
    for line in found:
        typer.echo(f"  {escaped(line)}")


async def _run(connection: Connection, plan: "Plan") -> None:
    from controller.reconcile.repair import Uninstaller
    from controller.reconcile.runtime import LoopClock

    async with connection.open() as cluster:
        await Uninstaller(cluster, plan, LoopClock(), typer.echo).run()
