"""The manifests of an installation, with what an operator may choose filled in.

Called by `make cluster`, by tests and by commands that install. In: `Installation`. Out: objects to apply. Pure but for
reading the shipped files, which are valid as they are; only what differs from them is changed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hami_dra.api import kinds, names
from hami_dra.cel import quote
from hami_dra.cluster.manifests import shipped
from hami_dra.cluster.selectors import match_expressions

Raw = dict[str, Any]
FailurePolicy = Literal["Fail", "Ignore"]
CONVERT_WEBHOOK: Final = "convert.webhook.hami.io"
GATE_WEBHOOK: Final = "gate.webhook.hami.io"
_SCHEDULER_CONDITION: Final = "scheduler"


@dataclass(frozen=True, slots=True)
class Installation:
    mode: Literal["exclusive", "native"] = "exclusive"
    """Native mode has neither gate nor fence."""
    gate: bool = True
    schedulers: tuple[str, ...] = ("default-scheduler",)
    """Only pods of these schedulers are gated."""
    webhook: bool = True
    webhook_url: str = ""
    """Where the API server reaches a webhook that runs outside the cluster (https://HOST:PORT/mutate); empty: the Service."""
    failure_policy: FailurePolicy = "Fail"
    """What happens to legacy pods while the webhook does not answer: refused, or let in unconverted."""
    namespace_selector: str = ""
    pod_selector: str = ""
    """Label selectors as kubectl writes them (`gpu=hami,tier in (a,b)`): only such pods, in such namespaces, are converted."""


def manifests(installation: Installation | None = None) -> list[Raw]:
    """Everything in manifests/ that belongs to the installation. Raises InvalidSelector."""
    installation = installation or Installation()
    exclusive = installation.mode == "exclusive"
    chosen = []
    for raw in shipped("manifests"):
        kind, name = raw["kind"], raw["metadata"]["name"]
        if name == names.GATE_POLICY and not (exclusive and installation.gate):
            continue
        if name == names.FENCE_POLICY and not exclusive:
            continue
        if name == names.WEBHOOK and not installation.webhook:
            continue
        if kind == kinds.SERVICE.name and installation.webhook_url:
            continue
        if kind == kinds.MUTATING_POLICY.name:
            _set_schedulers(raw["spec"]["matchConditions"], installation.schedulers)
        if kind == kinds.MUTATING_WEBHOOK.name:
            _set_webhooks(raw, installation)
        chosen.append(raw)
    return chosen


def _set_schedulers(conditions: list[Raw], schedulers: Sequence[str]) -> None:
    listed = ", ".join(quote(name) for name in schedulers)
    for condition in conditions:
        if condition["name"] == _SCHEDULER_CONDITION:
            condition["expression"] = f"object.spec.schedulerName in [{listed}]"


def _set_webhooks(raw: Raw, installation: Installation) -> None:
    kept = []
    for webhook in raw["webhooks"]:
        if webhook["name"] == GATE_WEBHOOK and not (installation.mode == "exclusive" and installation.gate):
            continue
        if webhook["name"] == CONVERT_WEBHOOK:
            webhook["failurePolicy"] = installation.failure_policy
            for field, selector in (
                ("namespaceSelector", installation.namespace_selector),
                ("objectSelector", installation.pod_selector),
            ):
                webhook[field]["matchExpressions"].extend(match_expressions(selector))
        if installation.webhook_url:
            webhook["clientConfig"] = {"url": installation.webhook_url}
        kept.append(webhook)
    raw["webhooks"] = kept
