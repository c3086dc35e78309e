"""Options that several commands share: one spelling, values and help text each."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from controller.cli import completion_values as values
from controller.cli import option_types
from controller.cli.errors import CommandError


class Mode(StrEnum):
    exclusive = "exclusive"
    native = "native"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class FenceOption(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


class Gate(StrEnum):
    on = "on"
    off = "off"


Kubeconfig = Annotated[
    str | None,
    typer.Option(metavar="FILE", envvar="KUBECONFIG", help="Default: in-cluster, else ~/.kube/config."),
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Context of the kubeconfig; default: its current one.", autocompletion=values.contexts
    ),
]
InstallNamespace = Annotated[
    str,
    typer.Option(
        "--install-namespace",
        metavar="NAMESPACE",
        help="Namespace in which hami-dra is installed.",
        callback=option_types.namespace_name,
        autocompletion=values.namespaces,
    ),
]
INSTALL_NAMESPACE_RENAMED: Final = {"--namespace": "--install-namespace"}
"""Of commands whose --namespace was the installation's; now it is a pod's everywhere."""
LogFormatOption = Annotated[LogFormat, typer.Option(help="Log format.")]
Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbosity",
        min=0,
        max=option_types.MOST_VERBOSE,
        help="Log level: 0 warnings only, 2 normal, 5 everything.",
    ),
]
HealthHost = Annotated[
    str, typer.Option(help="Address of the health and metrics server.", callback=option_types.host_names)
]
HealthPort = Annotated[int, typer.Option(min=0, max=option_types.LAST_PORT, help="Its port; 0 takes a free one.")]


class GangSource(StrEnum):
    """Groups of pods that count as gangs where an option says so."""

    leaderworkerset = "leaderworkerset"
    volcano = "volcano"


GangSourcesOption = Annotated[
    list[GangSource] | None,
    typer.Option("--gangs-of", help="Also treat these groups of pods as gangs; may be repeated."),
]


class PreferenceMode(StrEnum):
    """Whether what pods prefer of nodes counts."""

    honor = "honor"
    ignore = "ignore"


PreferencesOption = Annotated[
    PreferenceMode,
    typer.Option(
        "--preferences",
        help="Pods' preferences among nodes (preferred affinity, ScheduleAnyway, PreferNoSchedule): honor puts them above "
        "the node policy; ignore orders nodes as HAMi does.",
    ),
]
SchedulerNamesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler-name",
        help="The controller's --scheduler-name, if it is not default-scheduler: pods of other schedulers are not placed; "
        "may be repeated.",
    ),
]
KubernetesVersionOption = Annotated[
    str,
    typer.Option(
        metavar="1.36",
        help="Follow kube-scheduler of this version of Kubernetes. Default: the version of the live cluster; for "
        "files 1.37.",
    ),
]
FeatureGatesOption = Annotated[
    str, typer.Option(help="Kubernetes feature gates, A=true,B=false; default: those of Kubernetes 1.37.")
]
RuntimeClasses = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime-class",
        metavar="VENDOR=NAME",
        help="Set spec.runtimeClassName of pods that ask for devices of the vendor and do not set it; may be repeated.",
    ),
]

_OBJECT_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def runtime_classes(options: Sequence[str] | None) -> Mapping[str, str]:
    """Return vendor → name of its RuntimeClass. Raises CommandError."""
    from hami_dra.vendors.registry import LEGACY_VENDORS

    known = [vendor.name for vendor in LEGACY_VENDORS]
    found: dict[str, str] = {}
    for option in options or ():
        vendor, _, name = option.partition("=")
        if vendor not in known or not _OBJECT_NAME.fullmatch(name):
            raise CommandError(
                f"--runtime-class: {option!r} is not VENDOR=NAME with a vendor of {', '.join(known)} and the name of a RuntimeClass"
            )
        if found.setdefault(vendor, name) != name:
            raise CommandError(f"--runtime-class: {vendor} has two, {found[vendor]} and {name}; a pod has one")
    return found
