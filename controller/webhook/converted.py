"""Facts about pods that were converted, or should have been, for the controller. Created by the
program that starts it. Pure.
"""

from collections.abc import Collection
from typing import Any

from controller.webhook import unconverted
from controller.webhook.request import claim, decode, is_claim_name, plugin_resources, template
from hami_dra.api import names
from hami_dra.api.core import Pod


class LegacyConversion:
    """`native`: kube-scheduler serves plain counts of whole cards itself."""

    def __init__(self, *, native: bool = False) -> None:
        self._native = native

    def plugin_resources(self, pod: Pod) -> tuple[str, ...]:
        """Return the extended resources that the pod's claims replace. Raises InvalidRequest (a ValueError)."""
        annotation = pod.metadata.annotations.get(names.CONVERTED_REQUEST)
        return plugin_resources(decode(annotation)) if annotation else ()

    def claim_or_template(self, pod: Pod) -> dict[str, Any] | None:
        """Return the claim that the pod was converted to, or the template if it was converted in a file.

        Returns None if the pod does not name what its annotation describes: the annotation was then
        copied or changed, and nothing is created from it. Raises InvalidRequest (a ValueError).
        """
        annotation = pod.metadata.annotations.get(names.CONVERTED_REQUEST)
        if not annotation:
            return None
        made = template(decode(annotation), pod.metadata.namespace)
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name == made["metadata"]["name"]:
                return made
            if entry.resource_claim_name and is_claim_name(entry.resource_claim_name, made):
                return claim(made, entry.resource_claim_name, pod, entry.name)
        return None

    def bypassed(self, pod: Pod, offered: Collection[str]) -> str | None:
        """Return what to do about a pod that should have been converted but was not, or None.
        `offered`: extended resources that device plugins offer on some node.
        """
        parts = unconverted.bypassed(pod, native=self._native, offered=offered)
        return ". ".join(parts) if parts else None
