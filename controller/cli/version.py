"""Show the versions of this program, of Kubernetes, and of the installed controller, webhook and drivers.

Examples:
    hami-dra version
    hami-dra version --client
    hami-dra version -o json

Exit status: 0, or 2 if the cluster cannot be read; the version of this program is printed all the
same.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Annotated, Any, Final

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.output_options import Output, OutputOption, Printing
from controller.cli.tables import Line, note
from controller.settings.common import InstallNamespace
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from hami_dra.api.kinds import Kind
    from hami_dra.kube.http import HttpCluster

_VERSION_LABEL: Final = "app.kubernetes.io/version"


def version(
    *,
    client: Annotated[bool, Option("Only the version of this program; asks no cluster.")] = False,
    output: OutputOption = Output.table,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
    connection: Connection,
) -> None:
    from hami_dra.api.errors import ConfigError
    from hami_dra.kube.protocol import ClusterError

    found: dict[str, Any] = {"client": package_version("hami-dra")}
    problem: Exception | None = None
    if not client:
        try:
            import asyncio

            found |= asyncio.run(_installed(connection, install_namespace))
        except (ClusterError, ConfigError) as error:
            problem = error
    Printing(output).show(lambda _: _lines(found), lambda: [f"hami-dra/{found['client']}"], lambda: found)
    if problem is not None:
        raise CommandError(str(problem)) from problem


async def _installed(connection: Connection, namespace: str) -> dict[str, Any]:
    """Return the versions that may be read; `controller` None: none is there. Raises ClusterError, ConfigError."""
    from hami_dra.api import kinds

    async with connection.open() as cluster:
        server = await cluster.version()
        deployments = await _workloads(cluster, kinds.DEPLOYMENT, namespace)
        drivers = await _workloads(cluster, kinds.DAEMON_SET, namespace)
        leader = await _leader(cluster, namespace)
        found: dict[str, Any] = {"kubernetes": server.git_version or f"{server.major}.{server.minor}"}
        if deployments is not None:
            found["controller"] = deployments.get(names.CONTROLLER)
            if names.WEBHOOK in deployments:
                found["webhook"] = deployments[names.WEBHOOK]
        if leader is not None:
            found["leader"] = leader
        if drivers is not None:
            found["drivers"] = list(drivers.values())
        return found


async def _workloads(cluster: "HttpCluster", kind: "Kind[Any]", namespace: str) -> dict[str, dict[str, Any]] | None:
    """Return name → version, image and how many of its pods are ready; None if it may not be read."""
    from hami_dra.kube.protocol import Forbidden

    ours = f"{names.PART_OF_LABEL}={names.MANAGED_BY}"
    try:
        items = await cluster.list_raw(kind, namespace=namespace, label_selector=ours)
    except Forbidden as error:
        note(str(error))
        return None
    return {each["metadata"]["name"]: _workload(each) for each in items}


def _workload(raw: Mapping[str, Any]) -> dict[str, Any]:
    status = raw.get("status") or {}
    containers = raw["spec"]["template"]["spec"]["containers"]
    image = str(containers[0].get("image", ""))
    label = (raw["metadata"].get("labels") or {}).get(_VERSION_LABEL)
    return {
        "name": raw["metadata"]["name"],
        "version": label or image.partition("@")[0].rpartition("/")[2].partition(":")[2] or "unknown",
        "image": image,
        "ready": status.get("readyReplicas", status.get("numberReady", 0)),
        "wanted": raw["spec"].get("replicas", status.get("desiredNumberScheduled", 0)),
    }


async def _leader(cluster: "HttpCluster", namespace: str) -> str | None:
    """Return the holder of the controller's lease: empty if it has none, None if it may not be read."""
    from hami_dra.api import kinds
    from hami_dra.kube.protocol import Forbidden, NotFound

    try:
        lease = await cluster.get_raw(kinds.LEASE, names.CONTROLLER, namespace)
    except NotFound:
        return ""
    except Forbidden as error:
        note(str(error))
        return None
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _lines(found: Mapping[str, Any]) -> Iterator[Line]:
    rows = [("hami-dra", found["client"])]
    if "kubernetes" in found:
        rows.append(("Kubernetes", found["kubernetes"]))
    if "controller" in found:
        controller = _line(found["controller"]) if found["controller"] else "no Deployment here"
        leader = f", {_leading(found['leader'])}" if "leader" in found else ""
        rows.append(("controller", controller + leader))
    elif "leader" in found:
        rows.append(("controller", _leading(found["leader"])))
    if "webhook" in found:
        rows.append(("webhook", _line(found["webhook"])))
    rows += [("driver", f"{_line(each)}: {each['name']}") for each in found.get("drivers", ())]
    width = max(len(title) for title, _ in rows) + 1
    for title, text in rows:
        yield Line(f"{title + ':':{width}} {text}")


def _line(workload: Mapping[str, Any]) -> str:
    return f"{workload['version']}, {workload['ready']} of {workload['wanted']} pods ready"


def _leading(holder: str) -> str:
    return f"leader {holder}" if holder else "no leader"
