"""`hami-dra uninstall`: removes hami-dra from a cluster so that nothing is left stuck."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.service_options import Context, Kubeconfig
from hami_dra.api import names

if TYPE_CHECKING:
    from controller.reconcile.repair import Plan

HELP = """Remove hami-dra from a cluster: admission policies and webhook, then scheduling gates, the fence, probes,
annotations and finalizers.

Running pods keep their devices; kube-scheduler allocates pending claims again. You can run it any number of
times. A controller that still runs pauses meanwhile, and for ten minutes more: remove it in that time.

Nothing is removed before everything has been listed. An object that cannot be read or written does not stop
the rest: it is named, and the exit status is 2 at the end.

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
        str, typer.Option(help="The controller's --installation: claims of other installations are left alone.")
    ] = names.MANAGED_BY,
    namespace: Annotated[str, typer.Option(help="Namespace of the controller's lease.")] = names.SYSTEM_NAMESPACE,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile.repair import Plan

    run_service(_run(kubeconfig, context, Plan(installation=installation, namespace=namespace)))


async def _run(kubeconfig: str | None, context: str | None, plan: "Plan") -> None:
    from controller.cli.errors import CommandError
    from controller.reconcile.repair import LeftBehind, StillActing, Uninstaller
    from controller.reconcile.runtime import LoopClock
    from hami_dra.kube.http import connect

    cluster = connect(kubeconfig, context)
    try:
        await Uninstaller(cluster, plan, LoopClock(), typer.echo).run()
    except (StillActing, LeftBehind) as error:
        raise CommandError(str(error)) from error
    finally:
        await cluster.close()
