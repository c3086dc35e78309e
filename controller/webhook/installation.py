"""The manifests of an installation, with the operator's choices filled in.

Called by `make cluster`, by tests and by commands that install. In: `Installation`. Out: objects to
apply. Pure but for reading the shipped files, which are valid as they are; only the differences are
applied here.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from hami_dra.api import kinds, names
from hami_dra.cel import quote
from hami_dra.kube.manifests import OPTIONAL, shipped
from hami_dra.kube.selectors import match_expressions

Raw = dict[str, Any]
FailurePolicy = Literal["Fail", "Ignore"]
CONVERT_WEBHOOK: Final = "convert.webhook.hami.io"
ADVICE_WEBHOOK: Final = "advice.webhook.hami.io"
_SCHEDULERS: Final = 'in ["default-scheduler"]'
_CLASSES: Final = "name in []"
"""What the conditions of the policies say of schedulers, and of DeviceClasses of the operator."""
_IMAGE_VARIABLE: Final = "image"


class Installation(Struct, frozen=True):
    mode: Literal["exclusive", "native"] = "exclusive"
    """Native mode has neither gate nor fence."""
    gate: bool = True
    schedulers: tuple[str, ...] = ("default-scheduler",)
    """Only pods of these schedulers are gated."""
    device_classes: tuple[str, ...] = ()
    """DeviceClasses other than *hami.io whose generated claims get their finalizer at creation."""
    webhook: bool = True
    webhook_url: str = ""
    """URL of a webhook outside the cluster (https://HOST:PORT/mutate); empty: the Service."""
    failure_policy: FailurePolicy = "Fail"
    """Treatment of legacy pods while the webhook does not answer: refused, or admitted unconverted."""
    namespace_selector: str = ""
    pod_selector: str = ""
    """Label selectors as kubectl writes them (`gpu=hami,tier in (a,b)`): convert only such pods, in such namespaces."""
    own_certificate: bool = True
    """The webhook issues its own certificates and keeps them in a Secret and a configuration for them."""
    preemption: Literal["", "respect", "best-effort"] = ""
    """Whether the controller evicts pods (--preemption=devices, --defrag=execute), and how (--preemption-pdb)."""
    refuse_over_quota: bool = False
    """The webhook refuses pods that can never fit a quota, and therefore reads quotas."""
    probe_image: str = names.PROBE_IMAGE

    @property
    def optional(self) -> tuple[str, ...]:
        """Return the files of manifests/optional/ that belong to the installation."""
        chosen = {
            "native.yaml": self.mode == "native",
            "preemption.yaml": self.mode == "exclusive" and bool(self.preemption),
            "preemption-best-effort.yaml": self.mode == "exclusive" and self.preemption == "best-effort",
            "quota-refusals.yaml": self.webhook and self.refuse_over_quota,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


def manifests(installation: Installation | None = None) -> list[Raw]:
    """Return all manifests that belong to the installation. Raises InvalidSelector."""
    installation = installation or Installation()
    exclusive = installation.mode == "exclusive"
    chosen = []
    optional = [raw for name in installation.optional for raw in shipped(f"manifests/{OPTIONAL}/{name}")]
    for raw in (*shipped("manifests"), *optional):
        kind, name = raw["kind"], raw["metadata"]["name"]
        if name == names.GATE_POLICY and not (exclusive and installation.gate):
            continue
        if name in (names.FENCE_POLICY, names.PROTECT_POLICY) and not exclusive:
            continue
        if name.startswith(names.WEBHOOK) and not installation.webhook:
            continue
        if name == names.WEBHOOK_CERTIFICATE and not installation.own_certificate:
            continue
        if kind == kinds.SERVICE.name and installation.webhook_url:
            continue
        _fill_in(raw, installation)
        chosen.append(raw)
    return chosen


def _fill_in(raw: Raw, installation: Installation) -> None:
    match raw["kind"]:
        case kinds.MUTATING_POLICY.name:
            for condition in raw["spec"]["matchConditions"]:
                expression = condition["expression"].replace(_SCHEDULERS, f"in [{_listed(installation.schedulers)}]")
                condition["expression"] = expression.replace(
                    _CLASSES, f"name in [{_listed(installation.device_classes)}]"
                )
        case kinds.MUTATING_WEBHOOK.name | kinds.VALIDATING_WEBHOOK.name:
            for webhook in raw["webhooks"]:
                _set_webhook(webhook, installation)
        case kinds.VALIDATING_POLICY.name if raw["metadata"]["name"] == names.CONTROLLER_PROBE_POLICY:
            for variable in raw["spec"]["variables"]:
                if variable["name"] == _IMAGE_VARIABLE:
                    variable["expression"] = quote(installation.probe_image)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(quote, values))


def _set_webhook(webhook: Raw, installation: Installation) -> None:
    """Convert what the operator chose, and give advice there, at the same server."""
    if webhook["name"] == CONVERT_WEBHOOK:
        webhook["failurePolicy"] = installation.failure_policy
    if installation.webhook_url:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": installation.webhook_url.removesuffix("/mutate") + path}
    selectors = {"namespaceSelector": installation.namespace_selector, "objectSelector": installation.pod_selector}
    for field, selector in selectors.items():
        if selector and webhook["name"] in (CONVERT_WEBHOOK, ADVICE_WEBHOOK):
            webhook[field].setdefault("matchExpressions", []).extend(match_expressions(selector))
