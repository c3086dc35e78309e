"""`hami-dra uninstall`: removes hami-dra from a cluster so that nothing is left stuck."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.command import Command
from controller.cli.service_options import INSTALL_NAMESPACE_RENAMED, Context, InstallNamespace, Kubeconfig
from hami_dra.api import names
from hami_dra.api.printable import escaped

if TYPE_CHECKING:
    from controller.reconcile.repair import Plan

HELP = """Remove hami-dra from a cluster: admission policies and webhook, then scheduling gates, the fence, probes,
annotations and finalizers.

Running pods keep their devices; kube-scheduler allocates pending claims again. You can run it any number of
times. A controller that still runs pauses meanwhile, and for ten minutes more: remove it in that time.

Nothing is removed before everything has been listed. An object that cannot be read or written does not stop
the rest: it is named, and the exit status is 2 at the end. On a terminal it lists everything and asks first.

Examples:
    hami-dra uninstall --dry-run
    hami-dra uninstall --yes
    hami-dra uninstall --install-namespace gpus --context production
"""


class _Command(Command):
    RENAMED = INSTALL_NAMESPACE_RENAMED


def register(app: typer.Typer) -> None:
    app.command("uninstall", help=HELP, cls=_Command)(uninstall)


def uninstall(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask on a terminal.")] = False,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile.repair import Plan

    plan = Plan(namespace=install_namespace)
    if dry_run:
        run_service(_list(kubeconfig, context, plan))
        return
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        run_service(_list(kubeconfig, context, plan))
        if not typer.confirm("Remove all of this?"):
            typer.echo("nothing was removed")
            raise typer.Exit(1)
    run_service(_run(kubeconfig, context, plan))


async def _list(kubeconfig: str | None, context: str | None, plan: "Plan") -> None:
    """Print what `_run` would remove. Raises ClusterError."""
    from controller.reconcile.repair import to_remove
    from hami_dra.kube.http import connect

    cluster = connect(kubeconfig, context)
    try:
        found = await to_remove(cluster, plan)
    finally:
        await cluster.close()
    if not found:
        typer.echo("nothing of hami-dra is left in this cluster")
        return
    typer.echo("an uninstall removes:")
    for line in found:
        typer.echo(f"  {escaped(line)}")


async def _run(kubeconfig: str | None, context: str | None, plan: "Plan") -> None:
    from controller.cli.errors import CommandError
    from controller.reconcile.repair import LeftBehind, StillActing, Uninstaller
    from controller.reconcile.runtime import LoopClock
    from hami_dra.kube.http import connect

    cluster = connect(kubeconfig, context)
    try:
        await Uninstaller(cluster, plan, LoopClock(), typer.echo).run()
    except (StillActing, LeftBehind) as error:
        raise CommandError(*str(error).split("\n")) from error
    finally:
        await cluster.close()
