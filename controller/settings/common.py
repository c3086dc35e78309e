"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Struct

from hami_dra.api.flags import HOST, NAMESPACE_NAME, PORT, Form, Option

Mode = Literal["exclusive", "native"]
"""exclusive: the controller is the only writer of allocations. native: kube-scheduler allocates."""

OptionalSource = Literal["leaderworkerset", "volcano"]
"""Groups of pods that count as gangs where an option says so."""

Kubeconfig = Annotated[
    str | None, Option("Default: in-cluster, else ~/.kube/config.", metavar="FILE", envvar="KUBECONFIG")
]
InstallNamespace = Annotated[
    str,
    Option(
        "Namespace in which hami-dra is installed.",
        NAMESPACE_NAME,
        flags=("--install-namespace",),
        metavar="NAMESPACE",
        values="namespaces",
    ),
]
INSTALL_NAMESPACE_RENAMED: Final = {"--namespace": "--install-namespace"}
"""Of commands whose --namespace was the installation's; now it is a pod's everywhere."""
ManageProfile = Annotated[
    tuple[Path, ...],
    Option(
        "DriverProfile file, which says what the attributes of another DRA driver mean; that driver is managed, "
        "too. May be repeated.",
        metavar="FILE",
    ),
]
SchedulerNames = Annotated[
    frozenset[str],
    Option(
        "The controller's --scheduler-name, if it is not default-scheduler: pods of other schedulers are not placed; "
        "may be repeated."
    ),
]
_VERBOSITY: Final = ("-v", "--verbosity")
_LEVELS: Final = Form(least=0, most=5)


class Health(Struct, frozen=True):
    """The health and metrics server."""

    host: Annotated[str, Option("Address of the health and metrics server.", HOST)] = "0.0.0.0"  # noqa: S104 (kubelet and Prometheus call from outside the pod)
    port: Annotated[int, Option("Its port; 0 takes a free one.", PORT)] = 8080


class Log(Struct, frozen=True):
    log_format: Annotated[Literal["text", "json"], Option("Log format.")] = "text"
    verbosity: Annotated[
        int, Option("Log level: 0 warnings only, 2 normal, 5 everything.", _LEVELS, flags=_VERBOSITY)
    ] = 2


class ControllerLog(Log, frozen=True):
    verbosity: Annotated[
        int,
        Option("Log level: 0 warnings only, 2 normal, 4 one line per node, 5 everything.", _LEVELS, flags=_VERBOSITY),
    ] = 2
