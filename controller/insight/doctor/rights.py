"""Rights that the shipped manifests grant, as one access review for the API server each.

Called by the code that collects a state. In: the objects of an installation. Out: `Right`s without
verdicts. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final

from controller.insight.doctor.model import Right
from hami_dra.api import kinds, names

Raw = Mapping[str, Any]
ACCOUNTS: Final = (names.CONTROLLER, names.DRIVER, names.WEBHOOK)
"""ServiceAccounts of permanently running programs. `hami-dra-uninstall` exists only during an uninstall."""
_MANIFESTS: Final = {
    names.CONTROLLER: "rbac-controller.yaml",
    f"{names.CONTROLLER}-preemption": "optional/preemption.yaml",
    f"{names.CONTROLLER}-preemption-best-effort": "optional/preemption-best-effort.yaml",
    names.DRIVER: "rbac-driver.yaml",
    names.WEBHOOK_CERTIFICATE: "webhook-certificate.yaml",
    f"{names.DRIVER}-native": "optional/native.yaml",
    f"{names.DRIVER}-pod-groups": "optional/pod-groups.yaml",
    f"{names.WEBHOOK}-native": "optional/native.yaml",
    f"{names.WEBHOOK}-quotas": "optional/quota-refusals.yaml",
}
"""Role → the file that defines it."""


def needed_rights(objects: Iterable[Raw], accounts: Iterable[str]) -> list[Right]:
    """Return what the roles bound to these ServiceAccounts allow. `objects`: the installation's manifests."""
    listed = list(objects)
    roles = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", "")): each
        for each in listed
        if each["kind"] in {kinds.CLUSTER_ROLE.name, kinds.ROLE.name}
    }
    wanted = set(accounts)
    found: list[Right] = []
    for binding in listed:
        if binding["kind"] not in {kinds.CLUSTER_ROLE_BINDING.name, kinds.ROLE_BINDING.name}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"], namespace]
        for subject in binding["subjects"]:
            if subject["name"] in wanted:
                found.extend(_rights(subject["name"], role, namespace))
    return found


def _rights(account: str, role: Raw, namespace: str) -> Iterator[Right]:
    manifest = _MANIFESTS[role["metadata"]["name"]]
    for rule in role["rules"]:
        objects, resources = rule.get("resourceNames") or ("",), rule.get("resources", ())
        for group, entry, name, verb in product(rule.get("apiGroups", ()), resources, objects, rule["verbs"]):
            resource, _, subresource = entry.partition("/")
            yield Right(
                account=account,
                manifest=manifest,
                verb=verb,
                group=group,
                resource=resource,
                subresource=subresource,
                name=name,
                namespace=namespace,
            )
