"""Which rights the shipped manifests give to whom, one question for the API server each.

Called by whoever collects a state. In: the objects of manifests/rbac-*.yaml. Out: `Right`s, none asked yet. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controller.doctor.model import Right
from hami_dra.api import kinds, names

Raw = Mapping[str, Any]
MANIFESTS = {
    names.CONTROLLER: "rbac-controller.yaml",
    names.DRIVER: "rbac-driver.yaml",
    names.WEBHOOK: "rbac-webhook.yaml",
}
"""ServiceAccount → the file that gives it its rights. `hami-dra-uninstall` acts only when hami-dra goes."""


def needed_rights(objects: Iterable[Raw], accounts: Iterable[str]) -> list[Right]:
    """What the roles that are bound to these ServiceAccounts allow. `objects`: all of manifests/."""
    listed = list(objects)
    roles = {
        (each["kind"], each["metadata"]["name"]): each
        for each in listed
        if each["kind"] in {kinds.CLUSTER_ROLE.name, kinds.ROLE.name}
    }
    wanted = set(accounts)
    found: list[Right] = []
    for binding in listed:
        if binding["kind"] not in {kinds.CLUSTER_ROLE_BINDING.name, kinds.ROLE_BINDING.name}:
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        namespace = binding["metadata"].get("namespace", "")
        for subject in binding["subjects"]:
            if subject["name"] in wanted and subject["name"] in MANIFESTS:
                found.extend(_rights(subject["name"], role, namespace))
    return found


def _rights(account: str, role: Raw, namespace: str) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for entry in rule.get("resources", ()):
                resource, _, subresource = entry.partition("/")
                for name in rule.get("resourceNames") or ("",):
                    for verb in rule["verbs"]:
                        yield Right(
                            account=account,
                            manifest=MANIFESTS[account],
                            verb=verb,
                            group=group,
                            resource=resource,
                            subresource=subresource,
                            name=name,
                            namespace=namespace,
                        )
