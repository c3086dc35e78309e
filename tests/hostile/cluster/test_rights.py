"""A stolen token is worth little: what each account of hami-dra may do on a real API server, and what is refused (C2, H5, M6, L4).

Every write is a dry run, which the API server authorizes and admits as any other. That the rights which are left are enough is
shown by all other tests, whose programs run under these accounts; that each of them is used: test_rights_used.py.
"""

import base64
import contextlib
import copy

import pytest

from controller.reconcile.fence.probe import probe_bodies
from controller.reconcile.fence.rules import rule_body
from controller.reconcile.runtime import patches
from hack.controlplane.api import ApiError
from hack.installation import service_account_token
from hami_dra.api import names
from tests.e2e.objects import claim, device_class, part, pod, request, template
from tests.support.certificates import self_signed

pytestmark = pytest.mark.on_1_36

CORE = "/api/v1/namespaces/{}/{}"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/{}"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = {
    "MutatingWebhook": f"{ADMISSION}/mutatingwebhookconfigurations/{names.WEBHOOK}",
    "ValidatingWebhook": f"{ADMISSION}/validatingwebhookconfigurations/{names.WEBHOOK}",
}
"""Kind of their webhooks → the webhook's own configuration."""
SYSTEM, PROBE = names.SYSTEM_NAMESPACE, names.PROBE_NAMESPACE
SECRETS = CORE.format(SYSTEM, "secrets")
MINE, OTHER = "rights-1", "rights-2"
BUNDLE = base64.b64encode(self_signed()[0]).decode()
FORBIDDEN = (403, 422)


class Account:
    """A client with a token of an account; every write is a dry run."""

    def __init__(self, plane, name, *, bound_to=None):
        self._api = plane.api_as(service_account_token(plane.api, name, bound_to=bound_to))

    def create(self, path, body):
        return self._api.create(path, body, dryRun="All")

    def patch(self, path, body, kind="merge"):
        return self._api.patch(path, body, kind, dryRun="All")

    def replace(self, path, body):
        return self._api.replace(path, body, dryRun="All")

    def delete(self, path):
        return self._api.delete(path, missing_ok=False, dryRun=["All"])

    def get(self, path):
        return self._api.get(path)

    def close(self):
        self._api.close()


def refused(action, *arguments, **options):
    """What the API server said when it refused."""
    with pytest.raises(ApiError) as caught:
        action(*arguments, **options)
    assert caught.value.status in FORBIDDEN, caught.value
    return caught.value.message


@pytest.fixture(scope="module")
def installed(control_plane, make_installation):
    hami = make_installation()
    hami.uninstall_token()
    api = control_plane.api
    # a policy takes some seconds until it is in force: the last ones that were made are asked
    controller, webhook = (Account(control_plane, name) for name in (names.CONTROLLER, names.WEBHOOK))
    probe = {**probe_bodies(names.PROBE, "x", names.PROBE_IMAGE)["Pod"]}
    probe["spec"] = {**probe["spec"], "hostNetwork": False, "volumes": [{"name": "x", "emptyDir": {}}]}
    quotas = CORE.format("default", "resourcequotas")
    api.create(quotas, {"metadata": {"name": "probe"}, "spec": {"hard": {"pods": "1"}}})
    mine = {"reportingController": "kubelet", "regarding": {"kind": "Pod"}}

    def in_force():
        for action, arguments in (
            (controller.create, (CORE.format(PROBE, "pods"), probe)),
            (controller.patch, (f"{quotas}/probe", {"spec": {"hard": {"pods": "2"}}})),
            (controller.create, (EVENTS.format("default"), event(**mine))),
            (controller.create, (CLAIMS.format("default", "resourceclaimtemplates"), template("x", part()))),
            (controller.create, ("/apis/resource.k8s.io/v1/devicetaintrules", taint_rule("x"))),
            *((webhook.patch, (path, {"webhooks": []})) for path in CONFIGURATIONS.values()),
        ):
            try:
                action(*arguments)
            except ApiError as error:
                if "ValidatingAdmissionPolicy" not in error.message and error.status != 404:
                    return False
            else:
                return False
        try:
            api.create(SECRETS, token_secret("probe"), dryRun="All")
        except ApiError:
            return True
        return False

    api.wait_for("the policies in force", in_force)
    yield hami
    api.delete(f"{quotas}/probe")
    controller.close()
    webhook.close()


@pytest.fixture(scope="module")
def controller(control_plane, installed):
    with contextlib.closing(Account(control_plane, names.CONTROLLER)) as account:
        yield account


@pytest.fixture(scope="module")
def webhook(control_plane, installed):
    with contextlib.closing(Account(control_plane, names.WEBHOOK)) as account:
        yield account


@pytest.fixture(scope="module")
def uninstall(control_plane, installed):
    with contextlib.closing(Account(control_plane, names.UNINSTALL)) as account:
        yield account


@pytest.fixture
def driver(control_plane, installed, nodes):
    nodes.create(MINE, wait=False)
    node = control_plane.api.get(f"/api/v1/nodes/{MINE}")
    with contextlib.closing(Account(control_plane, names.DRIVER, bound_to=node)) as account:
        yield account


def token_secret(name):
    annotations = {"kubernetes.io/service-account.name": names.CONTROLLER}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "type": "kubernetes.io/service-account-token",
    }


def event(**more):
    return {
        "metadata": {"generateName": "forged-"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "action": "Look",
        "reason": "Forged",
        "reportingController": "hami.io/controller",
        "reportingInstance": "x",
        "type": "Normal",
        "note": "x",
        **more,
        "regarding": {
            "apiVersion": "v1",
            "namespace": "default",
            "name": "x",
            **more.get("regarding", {"kind": "Pod"}),
        },
    }


def taint_rule(name, key="example.com/x", effect="NoExecute"):
    return {
        "metadata": {"name": name},
        "spec": {"deviceSelector": {"driver": "x"}, "taint": {"key": key, "effect": effect}},
    }


# --- C2: the webhook's token ---------------------------------------------------------------------------------------------------


def test_the_webhooks_token_becomes_no_other_account(control_plane, webhook):
    """Step by step as it was: a Secret that the token controller fills, read by the webhook."""
    assert 'cannot create resource "secrets"' in refused(webhook.create, SECRETS, token_secret(names.WEBHOOK_SECRET))
    path = f"{SECRETS}/{names.WEBHOOK_SECRET}"
    assert webhook.get(path)["type"] == "Opaque"
    for change in (token_secret(names.WEBHOOK_SECRET), {"type": "kubernetes.io/service-account-token"}):
        assert "immutable" in refused(webhook.patch, path, change)
    refused(webhook.delete, path)
    # not even by way of somebody who may create Secrets there
    message = refused(control_plane.api.create, SECRETS, token_secret("any"), dryRun="All")
    assert "kubectl create token" in message
    control_plane.api.create(SECRETS, {"metadata": {"name": "any"}, "data": {"a": "Yg=="}}, dryRun="All")
    elsewhere = CORE.format("default", "secrets")
    control_plane.api.create(elsewhere, token_secret("any"), dryRun="All")


def test_the_webhooks_token_writes_nothing_but_its_certificate(webhook, namespace):
    webhook.patch(f"{SECRETS}/{names.WEBHOOK_SECRET}", {"data": {"tls.crt": "YQ=="}})
    for action, *arguments in (
        (webhook.create, CLAIMS.format(namespace, "resourceclaimtemplates"), template("x", part())),
        (webhook.create, CLAIMS.format("kube-system", "resourceclaimtemplates"), template("x", part())),
        (webhook.get, CORE.format(namespace, "resourcequotas")),
        (webhook.get, CLASSES),
        (webhook.get, SECRETS),
        (webhook.get, CORE.format("kube-system", "secrets")),
        *(
            attempt
            for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
            for attempt in (
                (webhook.get, f"{ADMISSION}/{plural}"),
                (webhook.create, f"{ADMISSION}/{plural}", {"metadata": {"name": "x"}}),
                (webhook.patch, f"{ADMISSION}/{plural}/other", {"webhooks": []}),
            )
        ),
        (webhook.get, CORE.format(namespace, "pods")),
    ):
        assert "cannot" in refused(action, *arguments), arguments


EVERYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
OTHER_VALUES = {
    "name": "other.hami.io",
    "rules": EVERYTHING,
    "matchPolicy": "Exact",
    "namespaceSelector": {"matchLabels": {"a": "b"}},
    "objectSelector": {"matchLabels": {"a": "b"}},
    "sideEffects": "NoneOnDryRun",
    "timeoutSeconds": 30,
    "admissionReviewVersions": ["v1", "v1beta1"],
    "reinvocationPolicy": "Never",
    "matchConditions": [{"name": "all", "expression": "true"}],
}
"""Field of a webhook → a valid value that no webhook of ours has."""
OTHER_POLICY = {"Fail": "Ignore", "Ignore": "Fail"}
OTHER_CLIENTS = {
    "url": {"url": "https://evil.example.com/mutate"},
    "service": {"service": {"namespace": "default", "name": "evil"}},
    "caBundle": None,  # the one that may be changed
}


def fields_of(api, schema):
    schemas = api.get("/openapi/v3/apis/admissionregistration.k8s.io/v1")["components"]["schemas"]
    return set(schemas[f"io.k8s.api.admissionregistration.v1.{schema}"]["properties"])


def changed_webhooks(hooks, fields):
    """Field → the webhooks with another value of it, the others as they are."""
    first, *others = hooks
    for field in sorted(fields - {"clientConfig"}):
        value = OTHER_POLICY[first[field]] if field == "failurePolicy" else OTHER_VALUES[field]
        assert first.get(field) != value, field
        yield field, [{**first, field: value}, *others]
    for field, client in OTHER_CLIENTS.items():
        if client is not None:
            kept = {"caBundle": first["clientConfig"].get("caBundle", "")}
            yield field, [{**first, "clientConfig": {**client, **kept}}, *others]
    yield "one more", [*hooks, {**first, "name": "more.hami.io", "rules": EVERYTHING}]
    yield "one less", others
    yield "another one in its place", [{**first, "name": "other.hami.io", "rules": EVERYTHING}, *others]
    if others:
        yield "another order", [*others, first]


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_of_its_configurations_the_webhooks_token_changes_ca_bundle_alone(control_plane, webhook, kind):
    """Each field that the API server knows; a policy compares them, because RBAC knows none."""
    path = CONFIGURATIONS[kind]
    fields = fields_of(control_plane.api, kind)
    known = {*OTHER_VALUES, "clientConfig", "failurePolicy"}
    assert fields == known - ({"reinvocationPolicy"} if kind.startswith("Validating") else set())
    assert fields_of(control_plane.api, "WebhookClientConfig") == OTHER_CLIENTS.keys()
    hooks = webhook.get(path)["webhooks"]
    for what, others in changed_webhooks(hooks, fields):
        assert "only changes caBundle" in refused(webhook.patch, path, {"webhooks": others}), what
    rules = [{"op": "replace", "path": "/webhooks/0/rules", "value": EVERYTHING}]
    assert "only changes caBundle" in refused(webhook.patch, path, rules, kind="json")
    named = {"webhooks": [{"name": hooks[0]["name"], "rules": EVERYTHING}]}
    assert "only changes caBundle" in refused(webhook.patch, path, named, kind="strategic")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    for field, value in (
        ("labels", {"a": "b"}),
        ("annotations", {"a": "b"}),
        ("finalizers", ["example.com/x"]),
        ("ownerReferences", [owner]),
    ):
        assert "metadata" in refused(webhook.patch, path, {"metadata": {field: value}}), field
    assert "cannot update" in refused(webhook.replace, path, webhook.get(path))
    trusting = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": BUNDLE}} for hook in hooks]
    written = webhook.patch(path, {"webhooks": trusting})
    assert {hook["clientConfig"]["caBundle"] for hook in written["webhooks"]} == {BUNDLE}
    # nobody else is held up
    control_plane.api.patch(path, {"metadata": {"labels": {"a": "b"}}}, dryRun="All")


# --- H5: the controller's token ----------------------------------------------------------------------------------------------------


@pytest.fixture
def a_pod(control_plane, create):
    """Of somebody else, pending, with our gate and another one."""
    gates = [{"name": names.GATE}, {"name": "example.com/other"}]
    item = pod(labels={"a": "b"}, schedulingGates=gates)
    return control_plane.api.path_of(create(item))


POD_CHANGES = {
    "image": [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}],
    "tolerations": [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
    "node selector": {"spec": {"nodeSelector": {"a": "b"}}},
    "deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "a gate of others": {"spec": {"schedulingGates": [{"name": names.GATE}]}},
    "all gates": {"spec": {"schedulingGates": None}},
    "label": {"metadata": {"labels": {"a": "c"}}},
    "new label": {"metadata": {"labels": {"x": "y"}}},
    "annotation": {"metadata": {"annotations": {"x": "y"}}},
    "finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
}
STATUS_CHANGES = {
    "phase": {"status": {"phase": "Failed"}},
    "conditions": {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    "address": {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
    "message": {"status": {"message": "x"}},
    "label": {"metadata": {"labels": {"a": "c"}}},
    "annotation": {"metadata": {"annotations": {"x": "y"}}},
}


@pytest.mark.parametrize("change", POD_CHANGES.values(), ids=POD_CHANGES)
def test_the_controllers_token_changes_no_pod(controller, a_pod, change):
    assert "hami-dra" in refused(controller.patch, a_pod, change, kind=kind_of(change))


def kind_of(change):
    return "json" if isinstance(change, list) else "merge"


@pytest.mark.parametrize("change", STATUS_CHANGES.values(), ids=STATUS_CHANGES)
def test_nor_its_status(controller, a_pod, change):
    assert "hami-dra" in refused(controller.patch, f"{a_pod}/status", change)


def test_nor_by_other_ways(controller, control_plane, a_pod):
    whole = control_plane.api.get(a_pod)
    whole["spec"]["containers"][0]["image"] = "evil"
    image = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    assert "hami-dra" in refused(controller.patch, a_pod, image, kind="strategic")
    for action, *arguments in (
        (controller.replace, a_pod, whole),
        (controller.delete, a_pod),
        (controller.patch, f"{a_pod}/ephemeralcontainers", {"spec": {"ephemeralContainers": []}}),
        (controller.patch, f"{a_pod}/resize", {"spec": {}}),
        (controller.create, f"{a_pod}/eviction", {"metadata": {"name": "x"}}),
        (controller.create, f"{a_pod}/binding", {"target": {"kind": "Node", "name": "x"}}),
        (controller.create, f"{a_pod}/exec?command=sh", {}),
    ):
        assert "cannot" in refused(action, *arguments), arguments


def test_the_controller_lifts_its_gate_and_nominates_a_node(controller, a_pod):
    lifted = controller.patch(a_pod, {"spec": {"schedulingGates": [{"name": "example.com/other"}]}})
    assert lifted["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    for node in ("n1", None):
        reported = controller.patch(f"{a_pod}/status", {"status": {"nominatedNodeName": node}})
        assert reported["status"].get("nominatedNodeName") == node


def test_the_controller_writes_deletion_costs_and_takes_them_back(controller, a_pod):
    keys = (names.POD_DELETION_COST, names.DELETION_COST)
    for cost in ("100", None):
        written = controller.patch(a_pod, {"metadata": {"annotations": dict.fromkeys(keys, cost)}})
        assert written["metadata"].get("annotations", {}).get(names.POD_DELETION_COST) == cost


def test_the_controllers_token_raises_no_quota(controller, create, control_plane):
    item = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "annotations": {"a": "b"}},
        "spec": {"hard": {"limits.nvidia.com/gpu": "1"}},
    }
    path = control_plane.api.path_of(create(item))
    for change in (
        {"spec": {"hard": {"limits.nvidia.com/gpu": "9"}}},
        {"spec": {"hard": {"limits.nvidia.com/gpu": None}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "c"}}},
        {"metadata": {"annotations": {"a": None}}},
        {"metadata": {"finalizers": ["example.com/x"]}},
    ):
        assert "hami-dra" in refused(controller.patch, path, change), change
    assert 'cannot patch resource "resourcequotas/status"' in refused(controller.patch, f"{path}/status", {})
    assert 'cannot delete resource "resourcequotas"' in refused(controller.delete, path)
    for text in ("{}", None):
        controller.patch(path, {"metadata": {"annotations": {names.QUOTA_USED: text}}})


def test_the_controllers_token_writes_only_its_finalizer_on_claims(controller, create, control_plane):
    item = claim("c", part(), annotations={"a": "b"})
    item["metadata"]["finalizers"] = ["example.com/x"]
    path = control_plane.api.path_of(create(item))
    for change in (
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "c"}}},
        {"metadata": {"annotations": {"x": "y"}}},
        {"metadata": {"annotations": {names.QUOTA_USED: "x"}}},
        {"metadata": {"finalizers": []}},
        {"metadata": {"finalizers": ["example.com/x", "example.com/y"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}},
    ):
        assert "hami-dra" in refused(controller.patch, path, change), change
    assert "cannot delete" in refused(controller.delete, path)
    finalizers = ["example.com/x", names.DELETE_PROTECTION]
    controller.patch(path, {"metadata": {"finalizers": finalizers}})
    control_plane.api.patch(path, {"metadata": {"finalizers": None}})


def test_the_controllers_token_makes_and_deletes_only_templates_of_converted_pods(
    controller, create, control_plane, namespace
):
    path = CLAIMS.format(namespace, "resourceclaimtemplates")
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TEMPLATE_HASH_LABEL: "0123"}
    ours = template("hami-0123", part())
    ours["metadata"]["labels"] = labels
    controller.create(path, ours)
    for name, wrong in (("hami-0123", {}), ("mine", labels), ("hami-0123", {**labels, names.MANAGED_BY_LABEL: "me"})):
        forged = copy.deepcopy(ours)
        forged["metadata"] |= {"name": name, "labels": wrong}
        assert "hami-<hash>" in refused(controller.create, path, forged)
    theirs = control_plane.api.path_of(create(template("theirs", part())))
    assert "hami-<hash>" in refused(controller.delete, theirs)
    controller.delete(control_plane.api.path_of(create(ours)))


def test_the_controllers_token_makes_only_claims_that_belong_to_a_pod(controller, control_plane, namespace):
    path = CLAIMS.format(namespace, "resourceclaims")
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TEMPLATE_HASH_LABEL: "0123"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    name = f"p-hami-{'0' * 18}"
    ours = claim(name, part())
    ours["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
    for wrong in (
        {"name": "mine"},
        {"labels": {}},
        {"ownerReferences": []},
        {"ownerReferences": [{**owner, "controller": False}]},
        {"ownerReferences": [{**owner, "kind": "ConfigMap"}]},
        {"ownerReferences": [owner, {**owner, "kind": "Node", "uid": "2", "controller": False}]},
    ):
        forged = {**ours, "metadata": {**ours["metadata"], **wrong}}
        assert "only the claims of converted pods" in refused(controller.create, path, forged), wrong
    control_plane.api.patch(
        f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {names.ADMIN_ACCESS_LABEL: "true"}}}
    )
    admin = {**ours, "spec": claim(name, request(adminAccess=True))["spec"]}
    assert "without admin access" in refused(controller.create, path, admin)
    controller.create(path, ours)


def rules_path(api):
    """Where the cluster serves DeviceTaintRules; None: nowhere (1.36)."""
    with contextlib.suppress(ApiError):
        api.list("/apis/resource.k8s.io/v1/devicetaintrules")
        return "/apis/resource.k8s.io/v1/devicetaintrules"
    return None


def test_the_controllers_token_taints_no_device_of_others(controller, create, control_plane):
    if (path := rules_path(control_plane.api)) is None:
        assert control_plane.version.startswith("1.36.")
        return
    controller.create(path, rule_body("x.example.com"))
    for rule in (
        taint_rule("any"),
        taint_rule("any", names.FENCE_TAINT, "NoSchedule"),
        taint_rule("hami-dra-fence-x"),
        taint_rule("hami-dra-fence-x", names.FENCE_TAINT, "NoExecute"),
    ):
        assert "fence" in refused(controller.create, path, rule)
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule"}
    theirs = control_plane.api.path_of(create({**kind, **taint_rule("theirs")}))
    for change in ({"metadata": {"labels": {"a": "b"}}}, {"spec": taint_rule("x", names.FENCE_TAINT)["spec"]}):
        assert "fence" in refused(controller.patch, theirs, change)
    assert "fence" in refused(controller.delete, theirs)


PROBE_CHANGES = {
    "another name": {"metadata": {"name": "x"}},
    "another image": {"container": {"image": "busybox"}},
    "a command": {"container": {"command": ["sh"]}},
    "arguments": {"container": {"args": ["sh"]}},
    "an environment": {"container": {"env": [{"name": "A", "value": "b"}]}},
    "privileged": {"container": {"securityContext": {"privileged": True}}},
    "as root": {"container": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}},
    "a second container": {"spec": {"containers": [{"name": "a", "image": names.PROBE_IMAGE}] * 2}},
    "an init container": {"spec": {"initContainers": [{"name": "a", "image": names.PROBE_IMAGE}]}},
    "the host's disk": {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}},
    "a volume": {"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}},
    "the host's network": {"spec": {"hostNetwork": True}},
    "the host's processes": {"spec": {"hostPID": True}},
    "a token": {"spec": {"automountServiceAccountToken": True}},
    "a token by default": {"spec": {"automountServiceAccountToken": None}},
    "another account": {"spec": {"serviceAccountName": "other"}},
    "a node": {"spec": {"nodeName": "x"}},
    "a priority": {"spec": {"priorityClassName": "system-node-critical"}},
}


def probe_with(change):
    body = copy.deepcopy(probe_bodies(names.PROBE, "nvidia.hami.io", names.PROBE_IMAGE)["Pod"])
    body["spec"]["containers"][0] |= change.get("container", {})
    body["metadata"] |= change.get("metadata", {})
    body["spec"] |= change.get("spec", {})
    return body


@pytest.mark.parametrize("change", PROBE_CHANGES.values(), ids=PROBE_CHANGES)
def test_the_controllers_token_runs_nothing_but_the_probe(controller, change):
    refused(controller.create, CORE.format(PROBE, "pods"), probe_with(change))


def test_the_probe_itself_is_let_in(controller):
    created = probe_bodies(names.PROBE, "nvidia.hami.io", names.PROBE_IMAGE)
    controller.create(CLASSES, created["DeviceClass"])
    controller.create(CLAIMS.format(PROBE, "resourceclaims"), created["ResourceClaim"])
    controller.create(CORE.format(PROBE, "pods"), created["Pod"])


def test_the_controllers_token_creates_nothing_elsewhere(controller, namespace):
    for where in (SYSTEM, "kube-system", namespace):
        assert 'cannot create resource "pods"' in refused(controller.create, CORE.format(where, "pods"), probe_with({}))
    any_claim = claim("x", part())
    assert "only the claims of" in refused(controller.create, CLAIMS.format(namespace, "resourceclaims"), any_claim)
    assert "only hami-dra-probe" in refused(controller.create, CLAIMS.format(PROBE, "resourceclaims"), any_claim)
    assert "only hami-dra-probe" in refused(controller.create, CLASSES, device_class("x", "true"))
    for action, *arguments in (
        (controller.get, SECRETS),
        (controller.get, CORE.format("kube-system", "configmaps")),
        (controller.create, f"{CORE.format(SYSTEM, 'serviceaccounts')}/{names.UNINSTALL}/token", {"spec": {}}),
        (controller.get, f"{ADMISSION}/validatingadmissionpolicies"),
        (controller.delete, f"{ADMISSION}/validatingadmissionpolicies/controller-pods.hami.io"),
        (controller.patch, "/api/v1/nodes/x", {"spec": {"unschedulable": True}}),
    ):
        assert "cannot" in refused(action, *arguments), arguments


def test_the_controller_speaks_in_its_own_name_only(controller, namespace):
    path = EVENTS.format(namespace)
    controller.create(path, event(regarding={"kind": "Pod", "namespace": namespace}))
    for reporter in ("kubelet", "hami.io/driver", "default-scheduler"):
        forged = event(reportingController=reporter, regarding={"kind": "Pod", "namespace": namespace})
        assert "reports as hami.io/controller only" in refused(controller.create, path, forged)


# --- M6: the account of uninstall ----------------------------------------------------------------------------------------------------


def test_uninstall_takes_away_what_is_ours_only(uninstall, create, control_plane, namespace, a_pod):
    others = f"{ADMISSION}/validatingadmissionpolicies/protects-others"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "protects-others", "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["x.example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["xs"]}]},
            "validations": [{"expression": "false"}],
        },
    }  # fmt: skip
    create(policy)
    theirs = control_plane.api.path_of(create(template("theirs", part())))
    for action, *arguments in (
        (uninstall.delete, others),
        (uninstall.delete, f"{ADMISSION}/mutatingwebhookconfigurations/others"),
        (uninstall.delete, f"{ADMISSION}/validatingwebhookconfigurations/others"),
        (uninstall.delete, f"{ADMISSION}/validatingwebhookconfigurations/others"),
        (uninstall.get, SECRETS),
        (uninstall.delete, f"{SECRETS}/others"),
        (uninstall.delete, a_pod),
        (uninstall.delete, f"{CORE.format(PROBE, 'pods')}/others"),
        (uninstall.delete, f"{CLAIMS.format(namespace, 'resourceclaims')}/others"),
        (uninstall.delete, f"{CLASSES}/others"),
    ):
        assert "cannot" in refused(action, *arguments), arguments
    assert "hami-dra" in refused(uninstall.patch, a_pod, POD_CHANGES["image"], kind="json")
    assert "hami-<hash>" in refused(uninstall.delete, theirs)
    for name in (names.FENCE_POLICY, *names.GUARD_POLICIES):
        uninstall.delete(f"{ADMISSION}/validatingadmissionpolicies/{name}")
        uninstall.delete(f"{ADMISSION}/validatingadmissionpolicybindings/{name}")


def test_its_account_is_no_part_of_an_installation(control_plane, make_installation):
    hami = make_installation()
    kinds = {(item["kind"], item["metadata"]["name"]) for item in hami.applied}
    assert not any(name == names.UNINSTALL for _, name in kinds)


# --- L4: the driver's token ------------------------------------------------------------------------------------------------------------


def test_the_drivers_token_reads_by_name_and_reports_about_its_node(driver, namespace):
    reports = {"reportingController": "hami.io/driver"}
    node = {"kind": "Node", "name": MINE}
    driver.create(EVENTS.format("default"), event(**reports, regarding=node))
    for forged in (
        event(**reports, regarding={"kind": "Node", "name": OTHER}),
        event(**reports, regarding={"kind": "Pod"}),
        event(reportingController="kubelet", regarding=node),
    ):
        assert "report" in refused(driver.create, EVENTS.format("default"), forged)
    for action, *arguments in (
        (driver.create, EVENTS.format(namespace), event(**reports)),
        (driver.create, EVENTS.format("kube-system"), event(**reports)),
        (driver.get, "/api/v1/pods"),
        (driver.get, CORE.format(namespace, "pods")),
        (driver.get, "/apis/resource.k8s.io/v1/resourceclaims"),
        (driver.get, CLAIMS.format(namespace, "resourceclaims")),
        (driver.get, CLASSES),
        (driver.patch, f"{CLAIMS.format(namespace, 'resourceclaims')}/x", {"metadata": {"labels": {"a": "b"}}}),
        (driver.patch, f"/api/v1/nodes/{MINE}", {"metadata": {"labels": {"a": "b"}}}),
    ):
        assert "cannot" in refused(action, *arguments), arguments


def test_a_token_of_the_driver_without_a_node_reports_nothing(control_plane, installed):
    with contextlib.closing(Account(control_plane, names.DRIVER)) as nobody:
        about = event(reportingController="hami.io/driver", regarding={"kind": "Node", "name": MINE})
        assert "report" in refused(nobody.create, EVENTS.format("default"), about)


def test_what_the_controller_writes_is_what_the_policies_know():
    """Whoever adds a write to `bodies` looks at controller-policy.yaml, too."""
    written = {
        name for name, value in vars(patches).items() if callable(value) and value.__module__ == patches.__name__
    }
    assert written == {
        *("guard", "is_protected", "is_ours", "pinned_node"),  # nothing is written by these
        *("protect", "allocate", "clear", "unprotect"),
        *("nominate", "withdraw_nomination", "lift_gate"),
    }
