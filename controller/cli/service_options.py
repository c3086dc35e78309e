"""Options that several commands share, as typer's: one spelling, values and help text each."""

from pathlib import Path
from typing import Annotated, Final

from controller.cli.declared import typer_option
from controller.settings import common

Kubeconfig = Annotated[str | None, typer_option(common.KUBECONFIG)]
InstallNamespace = Annotated[str, typer_option(common.INSTALL_NAMESPACE)]
INSTALL_NAMESPACE_RENAMED: Final = {"--namespace": "--install-namespace"}
"""Of commands whose --namespace was the installation's; now it is a pod's everywhere."""
SchedulerNamesOption = Annotated[list[str] | None, typer_option(common.SCHEDULER_NAMES)]
ManageProfile = Annotated[list[Path] | None, typer_option(common.MANAGE_PROFILE)]
