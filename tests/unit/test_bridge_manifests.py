"""What ships in manifests/ agrees with the code, and an installation changes only what its options say."""

import json
import re

import pytest

from controller.bridge.gate import SCHEDULING_ANNOTATIONS
from controller.bridge.installation import CONVERT_WEBHOOK, GATE_WEBHOOK, Installation, manifests
from controller.bridge.server import Settings
from hami_dra.api import kinds, names
from hami_dra.cluster.manifests import UnknownKind, apply, kind_of, remove, shipped
from hami_dra.cluster.memory import MemoryCluster
from hami_dra.cluster.selectors import InvalidSelector
from hami_dra.vendors.registry import LEGACY_VENDORS, VENDORS

PROGRAMS = (names.CONTROLLER, names.WEBHOOK, names.DRIVER, names.UNINSTALL)


def only(kind, objects=None, name=None):
    (found,) = [
        raw
        for raw in (shipped("manifests") if objects is None else objects)
        if raw["kind"] == kind.name and name in (None, raw["metadata"]["name"])
    ]
    return found


def conditions(webhook):
    return {condition["name"]: condition["expression"] for condition in webhook["matchConditions"]}


def webhooks(installation=None):
    raw = only(kinds.MUTATING_WEBHOOK, manifests(installation))
    return {webhook["name"]: webhook for webhook in raw["webhooks"]}


def strings(expression):
    return set(re.findall(r"'([^']*)'", expression))


# --- agreement with the code -----------------------------------------------------------------------------------------------


def test_the_webhook_is_asked_about_exactly_the_resources_that_are_converted():
    expression = conditions(webhooks()[CONVERT_WEBHOOK])["asks-for-legacy-resources"]
    assert strings(expression) == {name for vendor in LEGACY_VENDORS for name in vendor.resources}
    limits, requests = expression.split("requests")
    assert strings(limits) == strings(requests)


def test_policy_and_webhook_gate_by_the_same_rule_as_the_code():
    policy = conditions(only(kinds.MUTATING_POLICY)["spec"])
    webhook = conditions(webhooks()[GATE_WEBHOOK])
    assert webhook.items() <= policy.items()
    assert strings(policy["says-so"]) == {names.DRA_LABEL, "true", *SCHEDULING_ANNOTATIONS}
    assert strings(policy["not-gated-yet"]) == {names.GATE}
    mutation = only(kinds.MUTATING_POLICY)["spec"]["mutations"][0]["jsonPatch"]["expression"]
    assert strings(mutation) == {names.GATE, "name", "add", "/spec/schedulingGates", "/spec/schedulingGates/-"}


def test_the_fence_policy_knows_the_fence():
    spec = only(kinds.VALIDATING_POLICY, name=names.FENCE_POLICY)["spec"]
    offenders = next(variable["expression"] for variable in spec["variables"] if variable["name"] == "offenders")
    assert strings(offenders) == {names.FENCE_TAINT, "", "NoSchedule", "Exists"}
    assert names.FENCE_TAINT in spec["validations"][0]["messageExpression"]


def test_the_slice_policy_knows_the_driver_and_all_our_drivers():
    spec = only(kinds.VALIDATING_POLICY, name=names.SLICE_POLICY)["spec"]
    (condition,) = spec["matchConditions"]
    drivers = {vendor.profile.driver for vendor in VENDORS}
    driver = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.DRIVER}"
    assert strings(condition["expression"]) == {driver, "system:node:", "DELETE", *drivers}
    assert strings(spec["validations"][-1]["expression"]) == drivers
    status = [rule for rule in only(kinds.CLUSTER_ROLE, name=names.DRIVER)["rules"] if "resourceNames" in rule]
    assert [set(rule["resourceNames"]) for rule in status] == [drivers]


def test_the_claim_policy_knows_our_annotation_and_all_our_drivers():
    spec = only(kinds.VALIDATING_POLICY, name=names.CLAIM_POLICY)["spec"]
    variables = {each["name"]: strings(each["expression"]) for each in spec["variables"]}
    assert names.ALLOCATED_BY in variables["mark"] & variables["markBefore"]
    assert {vendor.profile.driver for vendor in VENDORS} <= variables["holdsDevices"]
    assert variables["losesFinalizer"] == {names.DELETE_PROTECTION}
    assert variables["isUninstall"] == {f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.UNINSTALL}"}


def test_names_are_those_that_the_programs_use():
    shipped_names = {(raw["kind"], raw["metadata"]["name"]) for raw in shipped("manifests")}
    for program in PROGRAMS:
        for kind in (kinds.SERVICE_ACCOUNT, kinds.CLUSTER_ROLE, kinds.CLUSTER_ROLE_BINDING):
            assert (kind.name, program) in shipped_names
    settings = Settings()
    assert (kinds.NAMESPACE.name, settings.namespace) in shipped_names
    assert (kinds.MUTATING_WEBHOOK.name, settings.configuration) in shipped_names
    service = webhooks()[CONVERT_WEBHOOK]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in settings.all_hosts
    assert only(kinds.SERVICE)["spec"]["ports"][0]["targetPort"] == settings.port
    role = only(kinds.ROLE, name=names.WEBHOOK)
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [settings.secret]]
    for name, policy, binding in (
        (names.GATE_POLICY, kinds.MUTATING_POLICY, kinds.MUTATING_POLICY_BINDING),
        (names.FENCE_POLICY, kinds.VALIDATING_POLICY, kinds.VALIDATING_POLICY_BINDING),
        (names.SLICE_POLICY, kinds.VALIDATING_POLICY, kinds.VALIDATING_POLICY_BINDING),
        (names.CLAIM_POLICY, kinds.VALIDATING_POLICY, kinds.VALIDATING_POLICY_BINDING),
    ):
        only(policy, name=name)
        assert only(binding, name=name)["spec"]["policyName"] == name


def test_everything_carries_our_label_and_is_of_a_kind_we_know():
    for raw in shipped("manifests"):
        assert raw["metadata"]["labels"][names.MANAGED_BY_LABEL] == names.MANAGED_BY
        kind_of(raw)


def rights(name):
    return {
        (group, resource): set(rule["verbs"])
        for raw in shipped("manifests")
        if raw["kind"] in ("ClusterRole", "Role") and raw["metadata"]["name"] == name
        for rule in raw["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_nobody_may_do_everything():
    for name in PROGRAMS:
        for (group, resource), verbs in rights(name).items():
            assert "*" not in {group, resource, *verbs}
            assert not verbs & {"escalate", "bind", "impersonate", "deletecollection"}


def test_only_the_controller_may_allocate():
    binding = ("resource.k8s.io", "resourceclaims/binding")
    assert rights(names.CONTROLLER)[binding] == {"patch", "update"}
    for name in set(PROGRAMS) - {names.CONTROLLER}:
        assert binding not in rights(name)
    status = ("resource.k8s.io", "resourceclaims/status")
    assert {name for name in PROGRAMS if status in rights(name)} == {names.CONTROLLER, names.DRIVER}


# --- options of an installation -----------------------------------------------------------------------------------------------


def test_by_default_the_files_as_they_are():
    assert manifests() == json.loads(json.dumps(shipped("manifests")))


def test_other_schedulers_are_gated_too():
    policy = only(kinds.MUTATING_POLICY, manifests(Installation(schedulers=("default-scheduler", "mine"))))
    assert conditions(policy["spec"])["scheduler"] == 'object.spec.schedulerName in ["default-scheduler", "mine"]'


def policies_of(installation):
    return {raw["metadata"]["name"] for raw in manifests(installation) if "Policy" in raw["kind"]}


def test_native_mode_has_neither_gate_nor_fence():
    always = {names.SLICE_POLICY, names.CLAIM_POLICY}
    assert policies_of(Installation()) == {names.GATE_POLICY, names.FENCE_POLICY, *always}
    assert policies_of(Installation(gate=False)) == {names.FENCE_POLICY, *always}
    assert policies_of(Installation(mode="native")) == always
    assert list(webhooks(Installation(mode="native"))) == [CONVERT_WEBHOOK]
    assert list(webhooks(Installation(gate=False))) == [CONVERT_WEBHOOK]


def test_conversion_is_limited_and_gating_is_not():
    limited = webhooks(Installation(namespace_selector="gpu=hami", pod_selector="!legacy", failure_policy="Ignore"))
    plain = webhooks()
    assert limited[GATE_WEBHOOK] == plain[GATE_WEBHOOK]
    convert = limited[CONVERT_WEBHOOK]
    opt_out = {"key": names.WEBHOOK_LABEL, "operator": "NotIn", "values": ["ignore"]}
    assert convert["namespaceSelector"]["matchExpressions"] == [
        *plain[CONVERT_WEBHOOK]["namespaceSelector"]["matchExpressions"],
        {"key": "gpu", "operator": "In", "values": ["hami"]},
    ]
    assert convert["objectSelector"]["matchExpressions"] == [opt_out, {"key": "legacy", "operator": "DoesNotExist"}]
    assert convert["failurePolicy"] == "Ignore"


def test_a_selector_that_cannot_be_read_is_refused():
    with pytest.raises(InvalidSelector):
        manifests(Installation(pod_selector="a in b"))


def test_a_webhook_outside_the_cluster_needs_no_service():
    objects = manifests(Installation(webhook_url="https://10.0.0.1:8443/mutate"))
    assert kinds.SERVICE.name not in {raw["kind"] for raw in objects}
    for webhook in only(kinds.MUTATING_WEBHOOK, objects)["webhooks"]:
        assert webhook["clientConfig"] == {"url": "https://10.0.0.1:8443/mutate"}


def test_without_a_webhook_nothing_of_it_is_installed():
    objects = manifests(Installation(webhook=False))
    assert names.WEBHOOK not in {raw["metadata"]["name"] for raw in objects}
    assert names.CONTROLLER in {raw["metadata"]["name"] for raw in objects}


# --- applying -------------------------------------------------------------------------------------------------------------


async def test_apply_brings_everything_in_and_remove_takes_it_out():
    cluster = MemoryCluster()
    seen = []

    async def notice(request):
        if request.is_write:
            seen.append(request.kind.name)

    cluster.hooks.append(notice)
    await apply(cluster, manifests())
    await apply(cluster, manifests())
    assert list(dict.fromkeys(seen))[:4] == ["Namespace", "ServiceAccount", "ClusterRole", "Role"]
    for raw in manifests():
        await cluster.get(kind_of(raw), raw["metadata"]["name"], raw["metadata"].get("namespace", ""))
    await remove(cluster, manifests())
    await remove(cluster, manifests())
    for raw in manifests():
        assert (await cluster.list(kind_of(raw))).items == ()
    assert seen[-1] == "Namespace"


def test_a_kind_we_never_write_is_refused():
    with pytest.raises(UnknownKind, match="batch/v1 CronJob"):
        kind_of({"apiVersion": "batch/v1", "kind": "CronJob"})
