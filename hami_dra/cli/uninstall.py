"""`hami-dra uninstall`: leave a cluster without anything getting stuck."""

from typing import TYPE_CHECKING, Annotated

import typer

from hami_dra.api import names
from hami_dra.cli.service_options import Context, Kubeconfig

if TYPE_CHECKING:
    from controller.reconcile.uninstall import Plan

HELP = """Take hami-dra out of a cluster: admission policies and webhook, then scheduling gates, the fence, probes, our marks.

Running pods keep their devices; pending claims are allocated by kube-scheduler again. It may be run any number of times; a
controller that still runs stands down while it works, and stays down for ten minutes: remove it in that time.

Nothing is removed before everything was listed. An object that cannot be read or written does not stop the rest: it is named,
and what could not be removed makes the exit status 2 at the end.

Examples:

    hami-dra uninstall

    hami-dra uninstall --kubeconfig ~/.kube/config --namespace hami-dra-system
"""


def register(app: typer.Typer) -> None:
    app.command("uninstall", help=HELP)(uninstall)


def uninstall(
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    installation: Annotated[
        str, typer.Option(help="The controller's --installation: claims of others are left alone.")
    ] = names.MANAGED_BY,
    namespace: Annotated[str, typer.Option(help="Where the controller's lease is.")] = names.SYSTEM_NAMESPACE,
) -> None:
    from controller.reconcile.uninstall import Plan
    from hami_dra.cli.service import run_service

    run_service(_run(kubeconfig, context, Plan(installation=installation, namespace=namespace)))


async def _run(kubeconfig: str | None, context: str | None, plan: "Plan") -> None:
    from controller.reconcile.clock import LoopClock
    from controller.reconcile.uninstall import LeftBehind, StillActing, Uninstaller
    from hami_dra.cli.errors import CommandError
    from hami_dra.cluster.http import connect

    cluster = connect(kubeconfig, context)
    try:
        await Uninstaller(cluster, plan, LoopClock(), typer.echo).run()
    except (StillActing, LeftBehind) as error:
        raise CommandError(str(error)) from error
    finally:
        await cluster.close()
