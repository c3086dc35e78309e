"""Types of option values that several programs share: each says in one sentence what fits.

Used as `callback` of an option; a value that does not fit ends the command with exit status 2,
before anything is read or connected. Durations: `controller.cli.durations`.
"""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

LAST_PORT: Final = 65535
MOST_VERBOSE: Final = 5
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN: Final = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"


def _checked(fits: Callable[[Any], object], wanted: str) -> Callable[[Any], Any]:
    """Return a callback for one value or a list. None: not given."""

    def check(value: Any) -> Any:
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is not None and not fits(item):
                raise typer.BadParameter(f"{str(item)!r} is not {wanted}")
        return value

    return check


def _pattern(text: str) -> Callable[[str], object]:
    return re.compile(text).fullmatch


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(_SUBDOMAIN, text.lower().removeprefix("*.")) is not None
    return True


namespace_name = _checked(_pattern(_LABEL), "the name of a namespace, such as hami-dra-system")
node_name = _checked(_pattern(rf"({_SUBDOMAIN})?"), "the name of a Node, such as gpu-node-1")
scheduler_names = _checked(_pattern(_SUBDOMAIN), "the name of a scheduler, such as default-scheduler")
installation_name = _checked(
    _pattern(_SUBDOMAIN), "a name of lower-case letters, digits, '-' and '.', such as hami-dra"
)
image = _checked(_pattern(r"[A-Za-z0-9][!-~]{0,511}"), "an image, such as registry.k8s.io/pause:3.10")
pod_uid = _checked(_pattern(r"[A-Za-z0-9-]{0,63}"), "the UID of a pod")
host_names = _checked(_is_host, "a host name or an IP address")
absolute_path = _checked(
    lambda path: Path(path).is_absolute() and "\0" not in str(path), "an absolute path, such as /var/lib/kubelet"
)
"""Of a text or a Path."""
