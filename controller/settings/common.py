"""Options that several commands have."""

from typing import Annotated, Final, Literal

from msgspec import Struct

from hami_dra.api.flags import HOST, NAMESPACE_NAME, PORT, Form, Option

Mode = Literal["exclusive", "native"]
"""exclusive: the controller is the only writer of allocations. native: kube-scheduler allocates."""

OptionalSource = Literal["leaderworkerset", "volcano"]
"""Groups of pods that count as gangs where an option says so."""

KUBECONFIG: Final = Option("Default: in-cluster, else ~/.kube/config.", metavar="FILE", envvar="KUBECONFIG")
CONTEXT: Final = Option("Context of the kubeconfig; default: its current one.", metavar="NAME", values="contexts")
INSTALL_NAMESPACE: Final = Option(
    "Namespace in which hami-dra is installed.",
    NAMESPACE_NAME,
    flags=("--install-namespace",),
    metavar="NAMESPACE",
    values="namespaces",
)
MANAGE_PROFILE: Final = Option(
    "DriverProfile file, which says what the attributes of another DRA driver mean; that driver is managed, "
    "too. May be repeated.",
    metavar="FILE",
)
SCHEDULER_NAMES: Final = Option(
    "The controller's --scheduler-name, if it is not default-scheduler: pods of other schedulers are not placed; "
    "may be repeated.",
    flags=("--scheduler-name",),
)
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
