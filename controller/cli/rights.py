"""What to do about a right that the user lacks."""

import re
from typing import Final

from hami_dra.kube.protocol import Forbidden

VIEWER: Final = "hami-dra-viewer"
"""ClusterRole with the rights of all commands that read (manifests/rbac-viewer.yaml)."""
_USER: Final = re.compile(r'User "([^"]+)"')
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


def with_grant(error: Forbidden) -> str:
    """Return the API server's words, and the command that grants the rights.

    >>> print(with_grant(Forbidden('nodes is forbidden: User "jane" cannot list resource "nodes"')))
    nodes is forbidden: User "jane" cannot list resource "nodes"; an administrator grants the rights to read with: kubectl create clusterrolebinding hami-dra-viewer-jane --clusterrole=hami-dra-viewer --user=jane
    """
    found = _USER.search(str(error))
    if found is None:
        return str(error)
    user = found[1]
    account = _ACCOUNT.fullmatch(user)
    subject = f"--serviceaccount={account[1]}:{account[2]}" if account else f"--user={user}"
    binding = f"{VIEWER}-{re.sub(r'[^a-z0-9.-]+', '-', user.lower().rpartition(':')[2])}"
    command = f"kubectl create clusterrolebinding {binding} --clusterrole={VIEWER} {subject}"
    return f"{error}; an administrator grants the rights to read with: {command}"
