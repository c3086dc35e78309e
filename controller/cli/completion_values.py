"""Values of options and arguments for completion: what the cluster, the kubeconfig and vendors have.

Called by typer for the option at hand (`autocompletion=`). Reads names only. Silent on every error,
and ends after `PATIENCE`: a shell waits for the answer.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import typer

from hami_dra.api import names

if TYPE_CHECKING:
    from hami_dra.api.kinds import Kind

PATIENCE: Final = 1.5
"""Seconds for all of a completion; credentials may come from a program that prompts the user."""


def nodes(ctx: typer.Context) -> list[str]:
    from hami_dra.api.kinds import NODE

    return _names(ctx, NODE)


def namespaces(ctx: typer.Context) -> list[str]:
    from hami_dra.api.kinds import NAMESPACE

    return _names(ctx, NAMESPACE)


def pods_and_claims(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return pods of the namespace; claims after `claim/`."""
    from hami_dra.api.kinds import POD, RESOURCE_CLAIM

    if incomplete.startswith("claim/"):
        return [f"claim/{name}" for name in _names(ctx, RESOURCE_CLAIM)]
    return [*_names(ctx, POD), *(["claim/"] if incomplete else [])]


def contexts(ctx: typer.Context) -> list[str]:
    from hami_dra.kube.kubeconfig import context_names

    return _within_patience(lambda: context_names(ctx.params.get("kubeconfig")))


def node_policies() -> list[str]:
    return list(names.NODE_POLICIES)


def device_policies() -> list[str]:
    return [*names.DEVICE_POLICIES, names.FIRST_FIT]


def formats() -> list[str]:
    from controller.cli.output_options import Manifest

    return list(Manifest)


def machines() -> list[str]:
    from hami_dra.driver.simulated import machine_names

    return list(machine_names())


def vendors() -> list[str]:
    from hami_dra.vendors.registry import plugin_names

    return list(plugin_names())


def _names(ctx: typer.Context, kind: "Kind[Any]") -> list[str]:
    """Return the names of the kind's objects, of the chosen namespace if it has one."""
    from hami_dra.kube.credentials import chosen_access
    from hami_dra.kube.object_names import object_names

    def read() -> list[str]:
        access = chosen_access(ctx.params.get("kubeconfig"), ctx.params.get("context"))
        namespace = ctx.params.get("namespace") or access.namespace
        return object_names(access, kind, namespace if kind.namespaced else "", seconds=PATIENCE)

    return _within_patience(read)


def _within_patience(read: Callable[[], list[str]]) -> list[str]:
    """Return what is read in time: a credential plugin may block for ever."""
    from hami_dra.kube.waiting import call_within

    with suppress(Exception):  # no completion is better than an error in a command line
        return call_within(PATIENCE, read)
    return []
