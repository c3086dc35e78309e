"""What ships in manifests/ agrees with the code, and an installation changes only what its options say."""

import json
import re

import pytest

from controller.reconcile.fence.rules import rule_names
from controller.reconcile.runtime.events import CONTROLLER
from controller.webhook.convert import UNCONVERTED
from controller.webhook.installation import ADVICE_WEBHOOK, CONVERT_WEBHOOK, Installation, manifests
from controller.webhook.notices import KEY_DOMAINS, RESOURCE_DOMAINS
from controller.webhook.server.server import WebhookSettings
from controller.webhook.workloads import POD_TEMPLATES
from hami_dra.api import kinds, names
from hami_dra.api.served_pods import SCHEDULING_ANNOTATIONS
from hami_dra.driver.node.events import REPORTER
from hami_dra.kube.manifests import UnknownKind, apply, kind_of, remove, shipped
from hami_dra.kube.selectors import InvalidSelector
from hami_dra.vendors.registry import LEGACY_VENDORS, VENDORS
from tests.support.steered_cluster import SteeredCluster

OPTIONAL = [
    raw
    for name in (
        "native.yaml",
        "pod-groups.yaml",
        "preemption.yaml",
        "preemption-best-effort.yaml",
        "quota-refusals.yaml",
        "uninstall.yaml",
    )
    for raw in shipped(f"manifests/optional/{name}")
]
EVERYTHING = [*shipped("manifests"), *OPTIONAL]
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
    wanted = {name for vendor in LEGACY_VENDORS for name in vendor.resources}
    assert strings(expression) == wanted | {"hami", names.CONVERTED_REQUEST}, "and about copies of converted pods"


def advising(installation=None):
    raw = only(kinds.VALIDATING_WEBHOOK, manifests(installation))
    return {webhook["name"]: webhook for webhook in raw["webhooks"]}


def test_advice_is_asked_for_in_exactly_the_domains_that_are_read():
    chosen_by_kind = {"Pod", "CronJob", "CREATE"}
    advice, unconverted = advising().values()
    found = conditions(advice)["names-something-of-hami-dra"]
    assert strings(found) == {*KEY_DOMAINS, *RESOURCE_DOMAINS, *chosen_by_kind, "/", names.CONVERTED_REQUEST}
    assert strings(conditions(unconverted)["names-cards"]) == {*RESOURCE_DOMAINS, *chosen_by_kind, "/"}
    left = unconverted["namespaceSelector"]["matchExpressions"][0]["values"]
    assert set(left) == UNCONVERTED - {names.SYSTEM_NAMESPACE}


def test_advice_can_stop_nobody():
    for webhook in advising().values():
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "None")
        assert webhook["timeoutSeconds"] <= 2
        wanted = {kind.lower() + "s" for group, kind in POD_TEMPLATES if group}
        assert {each for rule in webhook["rules"] for each in rule["resources"]} == {*wanted, "pods"}
        assert all(rule["operations"] == ["CREATE"] for rule in webhook["rules"] if rule["resources"] == ["pods"])


def test_advice_is_given_where_pods_are_converted_by_the_same_server():
    url = "https://10.0.0.1:8443/mutate"
    chosen = Installation(namespace_selector="gpu=hami", pod_selector="!legacy", webhook_url=url)
    advice, unconverted = advising(chosen).values()
    convert = webhooks(chosen)[CONVERT_WEBHOOK]
    assert advice["namespaceSelector"] == convert["namespaceSelector"]
    assert advice["objectSelector"]["matchExpressions"] == [
        *advising()[ADVICE_WEBHOOK]["objectSelector"]["matchExpressions"],
        {"key": "legacy", "operator": "DoesNotExist"},
    ]
    assert advice["clientConfig"] == {"url": "https://10.0.0.1:8443/advise"}
    assert unconverted["clientConfig"] == {"url": "https://10.0.0.1:8443/advise-unconverted"}


def test_the_policy_gates_by_the_same_rule_as_the_code():
    [condition] = conditions(only(kinds.MUTATING_POLICY, name=names.GATE_POLICY)["spec"]).values()
    assert strings(condition) == {names.DRA_LABEL, "true", *SCHEDULING_ANNOTATIONS, names.GATE, ""}
    mutation = only(kinds.MUTATING_POLICY, name=names.GATE_POLICY)["spec"]["mutations"][0]["jsonPatch"]["expression"]
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


def test_the_claim_policy_knows_our_mark_and_all_our_drivers():
    spec = only(kinds.VALIDATING_POLICY, name=names.CLAIM_POLICY)["spec"]
    variables = {each["name"]: strings(each["expression"]) for each in spec["variables"]}
    assert {names.ALLOCATION_MARK, *(vendor.profile.driver for vendor in VENDORS)} <= variables["holdsDevices"]
    assert strings(conditions(spec)["loses-finalizer-while-allocated"]) == {names.DELETE_PROTECTION}


def test_generated_claims_of_managed_classes_are_protected():
    """Every class that ships is one of them, and the operator may name more."""
    spec = only(kinds.MUTATING_POLICY, name=names.PROTECT_POLICY)["spec"]
    [condition] = conditions(spec).values()
    assert "resource.kubernetes.io/pod-claim-name" in strings(condition)
    [mutation] = spec["mutations"]
    assert names.DELETE_PROTECTION in strings(mutation["jsonPatch"]["expression"])
    assert "name.endsWith('hami.io')" in condition
    assert all(raw["metadata"]["name"].endswith("hami.io") for raw in shipped("deviceclasses"))
    named = only(kinds.MUTATING_POLICY, manifests(Installation(device_classes=("gpu", 'a"b'))), names.PROTECT_POLICY)
    [condition] = conditions(named["spec"]).values()
    assert 'name in ["gpu", "a\\"b"]' in condition


def test_names_are_those_that_the_programs_use():
    shipped_names = {(raw["kind"], raw["metadata"]["name"]) for raw in shipped("manifests")}
    everything = {(raw["kind"], raw["metadata"]["name"]) for raw in EVERYTHING}
    for program in PROGRAMS:
        assert (kinds.SERVICE_ACCOUNT.name, program) in everything
    assert (kinds.SERVICE_ACCOUNT.name, names.UNINSTALL) not in shipped_names  # it is there only while it is used
    settings = WebhookSettings()
    assert (kinds.NAMESPACE.name, settings.namespace) in shipped_names
    assert (kinds.MUTATING_WEBHOOK.name, names.WEBHOOK) in shipped_names
    service = webhooks()[CONVERT_WEBHOOK]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in settings.certificates.all_hosts(settings.namespace)
    assert only(kinds.SERVICE)["spec"]["ports"][0]["targetPort"] == settings.port
    role = only(kinds.ROLE, name=names.WEBHOOK_CERTIFICATE)
    assert [rule["resourceNames"] for rule in role["rules"]] == [[names.WEBHOOK_SECRET]]
    assert only(kinds.SECRET)["metadata"]["name"] == names.WEBHOOK_SECRET
    for name, policy, binding in (
        (names.GATE_POLICY, kinds.MUTATING_POLICY, kinds.MUTATING_POLICY_BINDING),
        (names.PROTECT_POLICY, kinds.MUTATING_POLICY, kinds.MUTATING_POLICY_BINDING),
        (names.FENCE_POLICY, kinds.VALIDATING_POLICY, kinds.VALIDATING_POLICY_BINDING),
        (names.SLICE_POLICY, kinds.VALIDATING_POLICY, kinds.VALIDATING_POLICY_BINDING),
    ):
        only(policy, name=name)
        assert only(binding, name=name)["spec"]["policyName"] == name


def test_everything_carries_our_label_and_is_of_a_kind_we_know():
    for raw in EVERYTHING:
        assert raw["metadata"]["labels"][names.MANAGED_BY_LABEL] == names.MANAGED_BY
        kind_of(raw)


def rules(account, objects=None):
    """(verbs, group, resource, resourceNames, namespace) of everything that is bound to a ServiceAccount."""
    objects = EVERYTHING if objects is None else objects
    roles = {
        (raw["kind"], raw["metadata"]["name"], raw["metadata"].get("namespace")): raw["rules"]
        for raw in objects
        if raw["kind"] in ("ClusterRole", "Role")
    }
    for raw in objects:
        if raw["kind"] in ("ClusterRoleBinding", "RoleBinding") and account in [
            each["name"] for each in raw["subjects"]
        ]:
            namespace = raw["metadata"].get("namespace")
            for rule in roles[raw["roleRef"]["kind"], raw["roleRef"]["name"], namespace]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        yield set(rule["verbs"]), group, resource, rule.get("resourceNames"), namespace


def rights(account):
    found = {}
    for verbs, group, resource, _, _ in rules(account):
        found.setdefault((group, resource), set()).update(verbs)
    return found


def test_nobody_may_do_everything():
    for name in PROGRAMS:
        for (group, resource), verbs in rights(name).items():
            assert "*" not in {group, resource, *verbs}
            assert not verbs & {"escalate", "bind", "impersonate", "deletecollection"}


def test_the_webhook_writes_nothing_but_its_own_certificate():
    """C2, M1: no Secret, no configuration and no template comes into being by its token."""
    writes = [rule for rule in rules(names.WEBHOOK) if rule[0] - {"get", "list", "watch"}]
    assert {resource: (verbs, named) for verbs, _, resource, named, _ in writes} == {
        "secrets": ({"get", "patch"}, [names.WEBHOOK_SECRET]),
        "mutatingwebhookconfigurations": ({"get", "patch"}, [names.WEBHOOK]),
        "validatingwebhookconfigurations": ({"get", "patch"}, [names.WEBHOOK]),
    }
    given = manifests(Installation(own_certificate=False))
    assert list(rules(names.WEBHOOK, given)) == []


def test_what_goes_is_named():
    """M6: a token that may delete deletes what is ours; what RBAC cannot name, a policy does (tests/hostile/cluster/test_rights.py)."""
    by_policy = {"resourceclaimtemplates", "devicetaintrules", "resourceslices"}
    for name in PROGRAMS:
        for verbs, _, resource, named, _ in rules(name):
            # it evicts pods anyway, and deletes them where an administrator chose --preemption-pdb=best-effort
            is_preemption = (name, resource) == (names.CONTROLLER, "pods")
            assert "delete" not in verbs or named or resource in by_policy or is_preemption, (name, resource)
    deletable = {each for verbs, _, _, named, _ in rules(names.UNINSTALL) if "delete" in verbs for each in named or ()}
    assert {names.GATE_POLICY, names.FENCE_POLICY, names.WEBHOOK, *names.GUARD_POLICIES} <= deletable


@pytest.mark.parametrize(
    ("preemption", "files"),
    [
        ("", ()),
        ("respect", ("preemption.yaml",)),
        ("best-effort", ("preemption.yaml", "preemption-best-effort.yaml")),
    ],
)
def test_the_controller_may_evict_only_where_it_is_to_preempt(preemption, files):
    assert Installation(preemption=preemption).optional == files
    assert Installation(mode="native", preemption=preemption).optional == ("native.yaml",)


def test_no_secret_can_be_made_by_any_token():
    for name in PROGRAMS:
        assert "create" not in rights(name).get(("", "secrets"), set())


def test_rights_of_native_mode_are_there_in_native_mode_only():
    claims = ("resource.k8s.io", "resourceclaims")

    def of_claims(installation):
        return {
            verb
            for verbs, *what, _, _ in rules(names.DRIVER, manifests(installation))
            if tuple(what) == claims
            for verb in verbs
        }

    assert of_claims(Installation()) == {"get"}
    assert of_claims(Installation(mode="native")) == {"get", "list", "watch"}


def test_quotas_are_read_where_they_are_told():
    quotas = [rule for rule in rules(names.WEBHOOK, manifests(Installation())) if rule[2] == "resourcequotas"]
    assert quotas == []
    reported = list(rules(names.WEBHOOK, manifests(Installation(refuse_over_quota=True))))
    assert ({"list"}, "", "resourcequotas", None, None) in reported


def test_the_policies_of_the_controller_know_its_names():
    texts = {
        raw["metadata"]["name"]: str(raw["spec"])
        for raw in shipped("manifests")
        if raw["kind"] == kinds.VALIDATING_POLICY.name
    }
    accounts = {
        f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{name}" for name in (names.CONTROLLER, names.UNINSTALL)
    }
    for name in names.CONTROLLER_POLICIES:
        assert all(account in texts[name] for account in accounts)
    assert names.GATE in texts["controller-pods.hami.io"]
    for known in (names.QUOTA_USED, names.DELETE_PROTECTION):
        assert known in texts["controller-marks.hami.io"]
    for known in (names.MANAGED_BY_LABEL, names.MANAGED_BY, names.TEMPLATE_HASH_LABEL):
        assert known in texts["controller-templates.hami.io"]
    for known in (names.FENCE_TAINT, *(rule_name.removesuffix("x") for rule_name in rule_names("x"))):
        assert known in texts["controller-fence.hami.io"]
    for known in (names.PROBE, names.PROBE_NAMESPACE, names.PROBE_IMAGE):
        assert known in texts[names.CONTROLLER_PROBE_POLICY]
    assert CONTROLLER in texts[names.EVENT_POLICY]
    assert REPORTER in texts[names.EVENT_POLICY]


def test_another_image_of_the_probe_is_told_to_the_policy():
    policy = only(kinds.VALIDATING_POLICY, manifests(Installation(probe_image='a"b')), names.CONTROLLER_PROBE_POLICY)
    assert {"name": "image", "expression": '"a\\"b"'} in policy["spec"]["variables"]


def test_only_the_controller_may_allocate():
    binding = ("resource.k8s.io", "resourceclaims/binding")
    assert rights(names.CONTROLLER)[binding] == {"patch"}
    for name in set(PROGRAMS) - {names.CONTROLLER}:
        assert binding not in rights(name)
    status = ("resource.k8s.io", "resourceclaims/status")
    assert {name for name in PROGRAMS if status in rights(name)} == {names.CONTROLLER, names.DRIVER}


def guards():
    """Policies and webhooks that are evaluated when somebody writes, and their conditions."""
    for raw in shipped("manifests"):
        if raw["kind"].endswith("Policy"):
            yield raw["metadata"]["name"], raw["spec"].get("matchConditions", ()), raw["spec"]["matchConstraints"]
        for webhook in raw.get("webhooks", ()):
            yield webhook["name"], webhook["matchConditions"], {}


def test_nothing_is_evaluated_for_pods_that_could_be_left_out():
    """The API server evaluates each condition of a list, and looks up namespaces before it looks at the resource."""
    for name, found, constraints in guards():
        assert len(found) <= 1, f"{name}: join the conditions by &&, which ends early"
        assert "namespaceSelector" not in constraints, f"{name}: select namespaces in the binding"
    excluded = advising()[ADVICE_WEBHOOK]["objectSelector"]["matchExpressions"]
    assert {"key": "pod-template-hash", "operator": "DoesNotExist"} in excluded


def test_events_that_need_no_guard_are_not_evaluated():
    """Kubelets report through the core group, in which no token of ours may write."""
    assert only(kinds.VALIDATING_POLICY, name=names.EVENT_POLICY)["spec"]["matchConstraints"]["matchPolicy"] == "Exact"
    assert all(("", "events") not in rights(name) for name in PROGRAMS)


# --- options of an installation -----------------------------------------------------------------------------------------------


def test_by_default_the_files_as_they_are():
    assert manifests() == json.loads(json.dumps(shipped("manifests")))


def test_other_schedulers_are_gated_too():
    installed = manifests(Installation(schedulers=("default-scheduler", "mine")))
    policy = only(kinds.MUTATING_POLICY, installed, names.GATE_POLICY)
    [condition] = conditions(policy["spec"]).values()
    assert 'object.spec.schedulerName in ["default-scheduler", "mine"]' in condition


def policies_of(installation):
    return {raw["metadata"]["name"] for raw in manifests(installation) if "Policy" in raw["kind"]}


def test_native_mode_has_neither_gate_nor_fence():
    always = set(names.GUARD_POLICIES)
    assert policies_of(Installation()) == {names.GATE_POLICY, names.PROTECT_POLICY, names.FENCE_POLICY, *always}
    assert policies_of(Installation(gate=False)) == {names.PROTECT_POLICY, names.FENCE_POLICY, *always}
    assert policies_of(Installation(mode="native")) == always


def test_conversion_is_limited():
    limited = webhooks(Installation(namespace_selector="gpu=hami", pod_selector="!legacy", failure_policy="Ignore"))
    plain = webhooks()
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
    assert not any(raw["metadata"]["name"].startswith(names.WEBHOOK) for raw in objects)
    assert names.CONTROLLER in {raw["metadata"]["name"] for raw in objects}


# --- applying -------------------------------------------------------------------------------------------------------------


async def test_apply_brings_everything_in_and_remove_takes_it_out():
    cluster = SteeredCluster()
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
    with pytest.raises(UnknownKind, match=r"example\.com/v1 Sheep"):
        kind_of({"apiVersion": "example.com/v1", "kind": "Sheep"})
