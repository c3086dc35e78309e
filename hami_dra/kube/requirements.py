"""The oldest supported Kubernetes, checked once by every program and command that reads a cluster."""

from typing import Final

from hami_dra.api.errors import InputError
from hami_dra.kube.protocol import Cluster, ServerVersion

MINIMUM: Final = (1, 36)
_MISSING: Final = "consumable capacity, device taints and partitionable devices are on by default only since then"


class UnsupportedKubernetes(InputError):
    """The message is one sentence for the operator: required version, reason, and version found."""


async def require_version(cluster: Cluster, minimum: tuple[int, int] = MINIMUM) -> ServerVersion:
    """Return the server's version.

    Raises UnsupportedKubernetes below `minimum`, ClusterError if the server does not answer.
    """
    found = await cluster.version()
    if not found.at_least(*minimum):
        major, minor = minimum
        raise UnsupportedKubernetes(
            f"hami-dra needs Kubernetes {major}.{minor} or newer ({_MISSING}), "
            f"and this is {found.git_version or f'{found.major}.{found.minor}'}."
        )
    return found
