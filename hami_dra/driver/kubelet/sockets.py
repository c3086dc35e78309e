"""Paths of the sockets, and their creation and removal.

Used by `server`. Names and limits are those of Kubernetes' own helper
(k8s.io/dynamic-resource-allocation/kubeletplugin). The names are pure; the other functions touch
the folders.
"""

import base64
import errno
import hashlib
import socket
from pathlib import Path
from typing import Final

PATH_MOST: Final = 107
"""Bytes of a unix socket's path: 108 with the zero at its end."""
NUL: Final = "\0"


class SocketError(Exception):
    """A socket cannot be created; the message says which, and what to do."""


def registration_socket(folder: Path, driver: str, instance: str = "") -> Path:
    """Return the socket where kubelet finds the driver. `instance`: uid of the pod: two may register at once."""
    if not instance:
        return _fitting(folder, [f"{driver}-reg.sock"])
    return _fitting(
        folder,
        [
            f"{driver}-{instance}-reg.sock",
            f"{driver}-{_short(instance, 8)}-reg.sock",
            f"dra-{_short(driver + NUL + instance, 16)}-reg.sock",
        ],
    )


def service_socket(folder: Path, instance: str = "") -> Path:
    """Return the socket for kubelet's calls. `folder` is the driver's own."""
    if not instance:
        return _fitting(folder, ["dra.sock"])
    return _fitting(folder, [f"dra-{instance}.sock", f"dra-{_short(instance, 8)}.sock"])


def sweep(folder: Path, pattern: str) -> None:
    """Remove sockets that killed instances of earlier pods left: kubelet would retry them indefinitely."""
    for path in folder.glob(pattern):
        if path.is_socket() and not _is_served(path):
            path.unlink(missing_ok=True)


def clear(path: Path) -> None:
    """Remove the socket of a killed instance; one that is being served stays. Raises SocketError."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not path.is_socket():
            if path.exists():
                raise SocketError(f"{path} is not a socket: remove it")
            return
        if _is_served(path):
            raise SocketError(
                f"{path} is served by another process: stop it, or give each of the two its own --instance-uid"
            )
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SocketError(f"{path} cannot be created: {error.strerror}: does the driver run as root?") from error


def close_to_others(path: Path) -> None:
    """Restrict the socket to root, which kubelet runs as."""
    path.chmod(0o600)


def remove(path: Path) -> None:
    """Remove the name; existing connections stay. To kubelet, the loss of a registration is the instance's end."""
    path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        code = probe.connect_ex(str(path))
    return code not in (errno.ECONNREFUSED, errno.ENOENT)


def _fitting(folder: Path, names: list[str]) -> Path:
    """Return the first name that fits."""
    for name in names:
        path = folder / name
        if len(bytes(path)) <= PATH_MOST:
            return path
    raise SocketError(
        f"{folder / names[-1]} is longer than the {PATH_MOST} bytes that the path of a socket may have: "
        "choose a shorter --root"
    )


def _short(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()
