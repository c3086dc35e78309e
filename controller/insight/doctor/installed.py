"""Presence of an installation, judged by its admission objects and its lease. Read by the checks."""

from typing import Any, Final

from controller.insight.doctor.model import Live, Raw, State
from hami_dra.api import names

_AUTHORITY: Final = "hami-dra-webhook-authority"
"""Secret of the authority that the chart creates."""
_INJECTED: Final = "cert-manager.io/inject-ca-from"


def is_out(state: State) -> bool:
    """Return whether nothing is installed: no lease, no policy, no webhook. False if unknown."""
    live = state.live
    if live is None or not live.lease_known or live.lease is not None or live.admission is None:
        return False
    return not any(_is_ours(each) for objects in live.admission.values() for each in objects)


def named(live: Live, kind: str, name: str) -> Raw | None:
    objects = (live.admission or {}).get(kind, ())
    return next((each for each in objects if each.get("metadata", {}).get("name") == name), None)


def hooks_of(live: Live, kind: str) -> dict[str, Raw]:
    """Return the webhooks of our configuration of this kind, by name."""
    configuration = named(live, kind, names.WEBHOOK) or {}
    return {each["name"]: each for each in configuration.get("webhooks") or () if "name" in each}


def filling_in(state: State, live: Live, kind: str) -> str:
    """Return how the caBundle of this kind is filled in, by issuer of the certificates (docs/install.md)."""
    namespace, configuration = state.installation.namespace, named(live, kind, names.WEBHOOK) or {}
    if injected := (configuration.get("metadata", {}).get("annotations") or {}).get(_INJECTED):
        return (
            f"cert-manager fills it in, from Certificate {injected}: check that cert-manager's cainjector runs: kubectl get pods -A "
            "-l app.kubernetes.io/component=cainjector"
        )
    source = live.webhook.certificate_from if live.webhook is not None else "self"
    if source == "helm":
        return f"upgrade the Helm release with its values: the chart fills it in from Secret {namespace}/{_AUTHORITY}"
    if source == "files":
        return (
            "set webhook.certificate.caBundle in the chart to the authority of its certificate, and upgrade the release"
        )
    return f"restart the webhook, which fills it in: kubectl -n {namespace} rollout restart deployment {names.WEBHOOK}"


def _is_ours(raw: Raw) -> bool:
    labels: dict[str, Any] = raw.get("metadata", {}).get("labels") or {}
    return names.MANAGED_BY in (labels.get(names.MANAGED_BY_LABEL), labels.get(names.PART_OF_LABEL))
