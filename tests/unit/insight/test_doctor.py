"""Each check of the doctor: silent where all is well, and naming object and fix where it is not."""

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from controller.insight.doctor.examine import CHECKS, examine
from controller.insight.doctor.model import (
    ClusterObjects,
    InstallationSettings,
    Live,
    Program,
    Severity,
    State,
    WebhookSeen,
)
from controller.insight.doctor.phrases import in_words, older
from controller.insight.doctor.rights import needed_rights
from controller.inventory.inventory import Inventory
from controller.reconcile.fence.rules import rule_body, rule_names
from controller.webhook.server.certificates import renewed
from hami_dra.api import names
from hami_dra.api.allocator import with_allocator
from hami_dra.api.core import Lease, Pod, PodStatus, ResourceQuota
from hami_dra.api.meta import Condition
from hami_dra.api.nodelacks import Lack, LackKind, encode
from hami_dra.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim
from hami_dra.kube.manifests import shipped
from hami_dra.kube.protocol import ServerVersion
from tests.cards import DRIVER, card, claim, node, pod, slice_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OLD = "2026-11-21T11:00:00Z"
NEW = "2026-11-21T11:59:55Z"
ADMISSION_KINDS = (
    "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
MATERIAL = renewed(None, ["hami-dra-webhook.hami-dra-system.svc"], NOW)


# --- a healthy cluster, and what makes it ill --------------------------------------------------------------------------------


def admission(*, without=(), bundle=MATERIAL.authorities):
    """As installed; the webhook has filled in its caBundle."""
    found = {kind: [] for kind in ADMISSION_KINDS}
    for raw in shipped("manifests"):
        if raw["kind"] in found and (raw["kind"], raw["metadata"]["name"]) not in without:
            found[raw["kind"]].append(raw)
    configurations = [*found["MutatingWebhookConfiguration"], *found["ValidatingWebhookConfiguration"]]
    for hook in (hook for each in configurations for hook in each["webhooks"]):
        hook["clientConfig"] = {**hook["clientConfig"], "caBundle": base64.b64encode(bundle).decode()}
    return {kind: tuple(objects) for kind, objects in found.items()}


def lease(renewed_at=NEW, holder="c_1", **annotations):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed_at}
    return msgspec.convert(
        {"metadata": {"name": "hami-dra-controller", "annotations": annotations}, "spec": spec}, Lease
    )


def live(**changes):
    healthy = {
        "version": ServerVersion(1, 37, "v1.37.1"),
        "serves_taint_rules": True,
        "gates": {"DRAConsumableCapacity": True},
        "admission": admission(),
        "lease": lease(),
        "rights": (),
        "webhook": WebhookSeen(expected=True, certificate=MATERIAL.certificate, conversion=""),
    }
    return Live(**{**healthy, **changes})


def rule(driver=DRIVER, *, proven=True, **changes):
    raw = rule_body(driver)
    raw["metadata"] = {**raw["metadata"], "generation": 2, "uid": "u"}
    raw["metadata"]["annotations"] = {names.FENCE_PROVEN: "u/2"} if proven else {}
    raw["spec"] = {**raw["spec"], **changes}
    raw["spec"]["taint"] = {key: value for key, value in raw["spec"]["taint"].items() if value is not None}
    return msgspec.convert(raw, DeviceTaintRule)


def being_deleted(fence, finalizers=(names.FENCE_FINALIZER,)):
    meta = msgspec.structs.replace(
        fence.metadata, deletion_timestamp="2026-01-01T00:00:00Z", generation=3, finalizers=tuple(finalizers)
    )
    return msgspec.structs.replace(fence, metadata=meta)


def state(*, classes=(), live=live(), slices=None, nodes=None, rules=None, claims=(), pods=(), quotas=(), **changes):  # noqa: B008 (frozen)
    slices = (slice_of("n1", [card(0), card(1)]),) if slices is None else tuple(slices)
    nodes = (node("n1"),) if nodes is None else tuple(nodes)
    rules = (rule(),) if rules is None else tuple(rules)
    inventory = Inventory()
    for feed, objects in (
        (inventory.node_changed, nodes),
        (inventory.slice_changed, slices),
        (inventory.class_changed, classes),
        (inventory.taint_rule_changed, rules),
        (inventory.claim_changed, claims),
        (inventory.pod_changed, pods),
        (inventory.quota_changed, quotas),
    ):
        for each in objects:
            feed(None, each)
    own = frozenset({DRIVER, "enflame.hami.io"})
    settings = {name: changes.pop(name) for name in InstallationSettings.__struct_fields__ if name in changes}
    return State(
        installation=InstallationSettings(**{"managed": own, "own_drivers": own, **settings}),
        objects=ClusterObjects(
            nodes=nodes,
            slices=slices,
            taint_rules=rules,
            classes=tuple(classes),
            claims=tuple(claims),
            pods=tuple(pods),
            quotas=tuple(quotas),
        ),
        inventory=inventory,
        live=live,
        **{"now": NOW, **changes},
    )


def findings(check, **changes):
    return [each for each in examine(state(**changes)).findings if each.check == check]


def one(check, **changes):
    (found,) = findings(check, **changes)
    return found


def held(name="a", device="gpu-0", *, memory="4Gi", reserved=("p",), ours=True, at=OLD, **metadata):
    """A claim that is allocated a share, by us."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device, "shareID": name}
    result["consumedCapacity"] = {"memory": memory, "cores": "10", "shares": "1"}
    found = claim(name, allocation={"devices": {"results": [result]}, "allocationTimestamp": at})
    raw = msgspec.json.decode(msgspec.json.encode(found))
    raw["status"]["reservedFor"] = [{"resource": "pods", "name": each, "uid": each} for each in reserved]
    raw["metadata"] |= {"finalizers": [names.DELETE_PROTECTION], **metadata}
    if ours:
        raw["status"]["allocation"] = with_allocator(raw["status"]["allocation"], "hami-dra")
    return msgspec.json.decode(msgspec.json.encode(raw), type=ResourceClaim)


def gated(*, created=OLD, gates=(names.GATE,)):
    spec = {"schedulingGates": [{"name": each} for each in gates]}
    return msgspec.structs.replace(
        pod("p", **spec), metadata=msgspec.structs.replace(pod("p").metadata, creation_timestamp=created)
    )


def quota(**hard):
    return msgspec.convert(
        {"metadata": {"name": "q", "namespace": "default", "uid": "q"}, "spec": {"hard": hard}}, ResourceQuota
    )


def device_class(name, resource=None, created=OLD):
    return msgspec.convert(
        {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}},
        DeviceClass,
    )


def test_nothing_is_found_where_all_is_well():
    pods = [pod("p", nodeName="n1", resourceClaims=[{"name": "gpu", "resourceClaimName": "a"}])]
    report = examine(state(claims=[held()], pods=pods, classes=[device_class("nvidia-gpu.hami.io", "nvidia.com/gpu")]))
    assert report.findings == ()
    assert report.healthy
    assert len(report.checked) == len(CHECKS)
    assert report.skipped == {}


def test_files_are_looked_at_as_far_as_they_go():
    report = examine(state(live=None))
    assert set(report.skipped) == {check.name for check in CHECKS if check.needs_live}
    assert report.findings == ()


def test_errors_come_first_and_warnings_do_not_make_a_cluster_ill():
    report = examine(state(rules=[], claims=[held(ours=False)]))
    assert [each.severity for each in report.findings] == [Severity.ERROR, Severity.WARNING]
    assert not report.healthy
    assert examine(state(claims=[held(ours=False)], pods=[pod("p")])).healthy


# --- what it stands on -------------------------------------------------------------------------------------------------------


def test_an_old_kubernetes_and_gates_that_are_off():
    old = live(version=ServerVersion(1, 35, "v1.35.2"))
    assert "v1.35.2" in one("version", live=old).problem
    found = findings("version", live=live(gates={"DRADeviceTaints": False, "DRAPartitionableDevices": False}))
    assert [(each.severity, each.fix.rpartition("=")[0].rpartition("=")[2]) for each in found] == [
        ("error", "DRADeviceTaints"),
        ("warning", "DRAPartitionableDevices"),
    ]
    assert findings("version", live=live(gates=None)) == []


def test_a_foreign_driver_that_cannot_be_fenced():
    managed = frozenset({DRIVER, "gpu.nvidia.com"})
    without = live(serves_taint_rules=False)
    assert "gpu.nvidia.com" in one("version", live=without, managed=managed).problem
    assert findings("version", live=without, managed=managed, mode="native") == []
    assert findings("version", managed=managed) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"lease": None}, "no controller runs here"),
        ({"lease": lease(holder="")}, "it has no holder"),
        ({"lease": lease("2026-11-21T11:58:00Z")}, "c_1 has not renewed it for 2 minutes"),
        ({"lease": lease(**{names.LEAVING_UNTIL: "2026-11-21T12:05:00Z"})}, "before 12:05:00 UTC"),
    ],
)
def test_nobody_leads(seen, words):
    found = one("controller", live=live(**seen))
    assert found.object == "Lease hami-dra-system/hami-dra-controller"
    assert words in found.problem


def test_a_lease_that_moves_is_fresh_whatever_the_clocks_say():
    assert findings("controller", live=live(lease=lease("2026-11-21T10:00:00Z"), lease_moved=True)) == []
    assert findings("controller", live=live(lease=None, lease_known=False)) == []
    assert findings("controller", live=live(lease=lease(**{names.LEAVING_UNTIL: OLD}))) == []


def test_programs_whose_pods_are_not_ready():
    def of(wanted, ready):
        return live(programs=(Program(kind="Deployment", name="hami-dra-webhook", wanted=wanted, ready=ready),))

    found = one("programs", live=of(2, 0))
    assert (found.severity, found.object) == (Severity.ERROR, "Deployment hami-dra-system/hami-dra-webhook")
    assert found.problem == "0 of its 2 pods are ready"
    assert "kubectl -n hami-dra-system describe deployment hami-dra-webhook" in found.fix
    assert one("programs", live=of(2, 1)).severity is Severity.WARNING
    assert findings("programs", live=of(2, 2)) == []


def test_rights_that_are_missing_are_named_with_their_manifest():
    wanted = needed_rights(shipped("manifests"), ["hami-dra-controller", "hami-dra-driver"])
    denied = [
        replace(right, allowed=not (right.verb == "patch" and right.subresource == "binding")) for right in wanted
    ]
    found = one("rights", live=live(rights=tuple(denied)))
    assert found.object == "ServiceAccount hami-dra-system/hami-dra-controller"
    assert found.problem == "it may not patch resourceclaims/binding.resource.k8s.io"
    assert "manifests/rbac-controller.yaml" in found.fix
    assert findings("rights", live=live(rights=tuple(wanted))) == []


def test_every_rule_that_is_bound_to_an_account_is_a_question():
    wanted = {
        (each.account, each.verb, each.resource, each.subresource, each.name, each.namespace)
        for each in needed_rights(shipped("manifests"), ["hami-dra-controller", "hami-dra-driver", "hami-dra-webhook"])
    }
    system = "hami-dra-system"
    assert ("hami-dra-controller", "patch", "resourceclaims", "binding", "", "") in wanted
    assert ("hami-dra-controller", "patch", "leases", "", "hami-dra-controller", system) in wanted
    assert ("hami-dra-controller", "create", "pods", "", "", "hami-dra-probe") in wanted
    assert ("hami-dra-driver", "associated-node:patch", "resourceclaims", "driver", "neuron.hami.io", "") in wanted
    assert ("hami-dra-webhook", "get", "secrets", "", "hami-dra-webhook-certificate", system) in wanted
    assert {each.account for each in needed_rights(shipped("manifests"), ["hami-dra-driver"])} == {"hami-dra-driver"}


# --- fence, policies, webhook --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "severity", "words"),
    [
        ([], "error", "it is missing"),
        ([rule(deviceSelector={"driver": DRIVER, "pool": "n1"})], "error", "it was changed"),
        (
            [rule(proven=False)],
            "warning",
            f"no device of {DRIVER} is given out until one has, or found none free",
        ),
        ([being_deleted(rule())], "warning", "stays in force"),
        ([being_deleted(rule(), finalizers=["example.com/backup"])], "error", "it was changed"),
    ],
    ids=["missing", "changed", "unproven", "being deleted", "being deleted without us"],
)
def test_a_fence_that_does_not_hold(rules, severity, words):
    found = one("fence", rules=rules)
    assert (found.severity, found.object) == (severity, f"DeviceTaintRule hami-dra-fence-{DRIVER}")
    assert words in found.problem


def test_the_rule_that_takes_the_place_of_another_one_is_the_fence():
    first, second = rule_names(DRIVER)
    successor = rule()
    successor = msgspec.structs.replace(successor, metadata=msgspec.structs.replace(successor.metadata, name=second))
    assert findings("fence", rules=[successor]) == []
    assert findings("fence", rules=[being_deleted(rule()), successor]) == []
    lost = msgspec.structs.replace(successor, metadata=msgspec.structs.replace(successor.metadata, annotations={}))
    assert one("fence", rules=[being_deleted(rule()), lost]).object == f"DeviceTaintRule {second}"
    assert one("fence", rules=[], managed=frozenset({DRIVER})).object == f"DeviceTaintRule {first}"


def test_a_file_that_leaves_generations_out_still_tells_that_the_fence_was_proven():
    whole = rule()
    without = msgspec.structs.replace(whole, metadata=msgspec.structs.replace(whole.metadata, generation=0))
    assert findings("fence", rules=[without], live=None) == []
    changed = msgspec.structs.replace(whole, metadata=msgspec.structs.replace(whole.metadata, generation=3))
    assert "no probe" in one("fence", rules=[changed]).problem


def test_the_fence_of_a_driver_that_nobody_manages():
    found = one("fence", rules=[rule(), rule("gpu.nvidia.com")])
    assert found.object == "DeviceTaintRule hami-dra-fence-gpu.nvidia.com"
    assert "--manage gpu.nvidia.com" in found.fix
    managed = frozenset({DRIVER, "gpu.nvidia.com"})
    assert findings("fence", rules=[rule(), rule("gpu.nvidia.com")], managed=managed) == []


def test_where_there_are_no_rules_the_slices_carry_the_fence():
    taint = {"key": names.FENCE_TAINT, "effect": "NoSchedule"}
    without = live(serves_taint_rules=False)
    fenced = slice_of("n1", [card(0, taints=[taint])])
    assert findings("fence", live=without, rules=[], slices=[fenced]) == []
    open_ = slice_of("n2", [card(0, taints=[taint]), card(1)])
    assert one("fence", live=without, rules=[], slices=[fenced, open_]).object == f"ResourceSlice n2-{DRIVER}"


def test_no_fence_is_missed_in_native_mode_nor_in_files_that_speak_of_none():
    assert findings("fence", rules=[], mode="native") == []
    assert findings("fence", rules=[], live=None) == []
    assert len(findings("fence", rules=[rule("enflame.hami.io")], live=None)) == 1


@pytest.mark.parametrize(
    ("gone", "severity", "manifest"),
    [
        (("ValidatingAdmissionPolicy", "fence.hami.io"), "error", "fence-policy.yaml"),
        (("ValidatingAdmissionPolicyBinding", "fence.hami.io"), "error", "fence-policy.yaml"),
        (("MutatingAdmissionPolicyBinding", "gate.hami.io"), "warning", "gate-policy.yaml"),
        (("ValidatingAdmissionPolicy", "slices.hami.io"), "error", "slice-policy.yaml"),
        (("ValidatingAdmissionPolicy", "claims.hami.io"), "error", "claim-policy.yaml"),
        (("ValidatingAdmissionPolicy", "tokens.hami.io"), "error", "account-policy.yaml"),
        (("ValidatingAdmissionPolicyBinding", "events.hami.io"), "warning", "account-policy.yaml"),
        (("ValidatingAdmissionPolicy", "webhook-trust.hami.io"), "error", "account-policy.yaml"),
        (("ValidatingAdmissionPolicy", "controller-pods.hami.io"), "error", "controller-policy.yaml"),
    ],
)
def test_policies_that_are_missing(gone, severity, manifest):
    found = one("policies", live=live(admission=admission(without=[gone])))
    assert (found.severity, found.object) == (severity, " ".join(gone))
    assert manifest in found.fix


def test_a_policy_that_denies_nothing():
    objects = admission()
    for binding in objects["ValidatingAdmissionPolicyBinding"]:
        binding["spec"]["validationActions"] = ["Audit"]
    assert [each.problem.partition(":")[0] for each in findings("policies", live=live(admission=objects))] == [
        "its validationActions do not say Deny",
    ] * (1 + len(names.GUARD_POLICIES))


def as_stored(raw):
    """With what the API server adds."""
    spec = raw["spec"]
    constraints = spec.get("matchConstraints", {})
    rules = [{"scope": "*", **each} for each in constraints.get("resourceRules", ())]
    added = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    stored = {**spec, "matchConstraints": {**added, **constraints, "resourceRules": rules}} if constraints else spec
    return {**raw, "metadata": {**raw["metadata"], "uid": "u", "generation": 1}, "spec": stored, "status": {}}


def test_what_the_api_server_adds_to_a_policy_is_no_difference():
    objects = {kind: tuple(map(as_stored, each)) if "Policy" in kind else each for kind, each in admission().items()}
    assert objects != admission()
    assert findings("policies", live=live(admission=objects)) == []


def changed_policy(name, change):
    objects = admission()
    [policy] = [each for each in objects["ValidatingAdmissionPolicy"] if each["metadata"]["name"] == name]
    change(policy["spec"])
    return findings("policies", live=live(admission=objects))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec.update(failurePolicy="Ignore"), "its failurePolicy is Ignore"),
        (lambda spec: spec["validations"].clear(), "its field validations is not as shipped"),
        (lambda spec: spec["validations"][0].update(expression="true"), "its validations[0].expression is true"),
        (
            lambda spec: spec["validations"][0].update(expression="1 == 1"),
            "its field validations[0].expression is not as shipped",
        ),
        (
            lambda spec: spec["matchConstraints"]["resourceRules"][0].update(operations=["DELETE"]),
            "its matchConstraints.resourceRules[0].operations do not say CREATE",
        ),
        (lambda spec: spec.pop("matchConstraints"), "its field matchConstraints is missing"),
    ],
)
def test_a_policy_that_was_weakened(change, said):
    (found,) = changed_policy("fence.hami.io", change)
    assert found.object == "ValidatingAdmissionPolicy fence.hami.io"
    assert (
        found.problem == f"{said}: claims that tolerate the fence are admitted, and kube-scheduler allocates for them"
    )


def test_what_an_operator_chooses_in_a_policy_is_no_difference():
    objects = admission()
    [gate] = [each for each in objects["MutatingAdmissionPolicy"] if each["metadata"]["name"] == names.GATE_POLICY]
    gate["spec"]["matchConditions"][0]["expression"] = "object.spec.schedulerName in ['mine']"
    assert findings("policies", live=live(admission=objects)) == []


def test_policies_about_accounts_of_another_namespace():
    """As where manifests were applied as they are, and the programs run elsewhere."""
    found = findings("policies", live=live(admission=admission()), namespace="elsewhere")
    problem = "it names accounts of another namespace than elsewhere"
    assert {each.object.partition(" ")[2] for each in found if problem in each.problem} == {
        names.SLICE_POLICY,
        names.EVENT_POLICY,
        names.TRUST_POLICY,
        *names.CONTROLLER_POLICIES,
    }


def webhook(*, certificate=MATERIAL.certificate, conversion="", **changes):
    seen = WebhookSeen(expected=True, certificate=certificate, conversion=conversion)
    return findings("webhook", live=live(**{"webhook": seen, **changes}))


def test_the_certificate_and_who_signed_it():
    assert webhook() == []
    other = renewed(None, ["x"], NOW)
    (found,) = webhook(certificate=other.certificate)
    assert "no certificate of its caBundle signed" in found.problem
    (found,) = webhook(admission=admission(bundle=b""))
    assert "caBundle is empty" in found.problem
    assert found.fix.startswith("restart the webhook, which fills it in: kubectl -n hami-dra-system rollout restart")
    (found,) = webhook(admission=admission(bundle=b"nonsense"))
    assert "not a list of certificates" in found.problem
    aged = renewed(None, ["x"], NOW - timedelta(days=360))
    (found,) = webhook(certificate=aged.certificate, admission=admission(bundle=aged.authorities))
    assert (found.severity, found.object) == ("warning", "Secret hami-dra-system/hami-dra-webhook-certificate")
    over = renewed(None, ["x"], NOW - timedelta(days=400))
    (found,) = webhook(certificate=over.certificate, admission=admission(bundle=over.authorities))
    assert (found.severity, found.problem) == ("error", "the webhook's certificate ends 2026-10-17 12:00 UTC")


@pytest.mark.parametrize(
    ("source", "annotations", "said"),
    [
        ("self", {}, "restart the webhook, which fills it in"),
        (
            "helm",
            {},
            "upgrade the Helm release with its values: the chart fills it in from Secret hami-dra-system/hami-dra-w",
        ),
        ("files", {}, "set webhook.certificate.caBundle in the chart"),
        (
            "files",
            {"cert-manager.io/inject-ca-from": "a/b"},
            "cert-manager fills it in, from Certificate a/b: check that",
        ),
    ],
    ids=["self", "helm", "secret", "cert-manager"],
)
@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_what_fills_in_an_empty_ca_bundle(kind, source, annotations, said):
    objects = admission()
    for configuration in objects[kind]:
        configuration["metadata"]["annotations"] = annotations
        for hook in configuration["webhooks"]:
            hook["clientConfig"]["caBundle"] = ""
    seen = WebhookSeen(expected=True, certificate_from=source, conversion="")
    fixes = [each.fix for each in webhook(webhook=seen, admission=objects) if each.object.startswith(kind)]
    assert fixes
    assert all(fix.startswith(said) for fix in fixes)


def test_a_new_authority_beside_the_old_one_is_no_fault():
    other = renewed(None, ["x"], NOW)
    assert webhook(admission=admission(bundle=other.authorities + MATERIAL.authorities)) == []


def lacking(text, **changes):
    item = slice_of("n1", [card(0)])
    annotated = msgspec.structs.replace(item.metadata, annotations={names.NODE_LACKS: text})
    return findings("containers", slices=[msgspec.structs.replace(item, metadata=annotated)], **changes)


def test_what_a_driver_says_that_containers_on_its_node_would_lack():
    lacks = [
        Lack(LackKind.LIBRARIES, "there is no libcuda.so.1"),
        Lack(LackKind.PARTITIONS, "MIG is hidden"),
        Lack(LackKind.LIMITS, "HAMi-core is not installed"),
    ]
    assert [(each.severity, each.object, each.problem) for each in lacking(encode(lacks))] == [
        ("error", "Node n1", f"{DRIVER}: there is no libcuda.so.1"),
        ("error", "Node n1", f"{DRIVER}: MIG is hidden"),
        ("warning", "Node n1", f"{DRIVER}: HAMi-core is not installed"),
    ]
    assert all(each.fix for each in lacking(encode(lacks)))
    hint = encode([Lack(LackKind.USAGE, "usage is not known")])
    (found,) = lacking(hint)
    assert (found.severity, found.object, "driver.usageCache: host" in found.fix) == ("hint", "Node n1", True)
    annotations = {names.NODE_LACKS: hint}
    everywhere = []
    for name in ("n2", "n1", "n3"):
        item = slice_of(name, [card(0)])
        annotated = msgspec.structs.replace(item.metadata, annotations=annotations)
        everywhere.append(msgspec.structs.replace(item, metadata=annotated))
    assert [each.object for each in findings("containers", slices=everywhere)] == ["Node n1 and 2 more"]
    (found,) = lacking("nonsense")
    assert (found.severity, "cannot be read" in found.problem) == ("warning", True)
    assert lacking(encode(lacks), own_drivers=frozenset()) == lacking("") == []


def test_a_runtime_class_that_the_webhook_sets_and_nobody_made():
    seen = WebhookSeen(expected=True, missing_runtime_classes={"nvidia": "nvidia"})
    (found,) = webhook(webhook=seen)
    assert (found.severity, found.object) == ("error", "RuntimeClass nvidia")
    assert "the API server refuses every one of them" in found.problem
    assert "vendors.nvidia.podRuntimeClassName" in found.fix


def test_a_webhook_that_is_missing_weak_or_does_not_answer():
    (found,) = webhook(admission=admission(without=[("MutatingWebhookConfiguration", "hami-dra-webhook")]))
    assert "it is missing" in found.problem
    gone = live(
        admission=admission(without=[("MutatingWebhookConfiguration", "hami-dra-webhook")]),
        webhook=WebhookSeen(expected=False),
    )
    assert findings("webhook", live=gone) == []
    (found,) = webhook(conversion='failed calling webhook "convert.webhook.hami.io": connection refused')
    assert "connection refused" in found.problem
    weak = admission()
    weak["MutatingWebhookConfiguration"][0]["webhooks"][0]["failurePolicy"] = "Ignore"
    (found,) = webhook(admission=weak)
    assert found.severity is Severity.WARNING


def test_advice_that_is_missing_or_not_trusted_is_a_warning():
    name = ("ValidatingWebhookConfiguration", "hami-dra-webhook")
    (found,) = webhook(admission=admission(without=[name]))
    assert (found.severity, found.object) == (Severity.WARNING, " ".join(name))
    assert "kubectl apply does not warn" in found.problem
    distrusted = admission()
    distrusted["ValidatingWebhookConfiguration"][0]["webhooks"][0]["clientConfig"]["caBundle"] = ""
    (found,) = webhook(admission=distrusted)
    assert "the API server does not trust the webhook" in found.problem


# --- pods that are not placed, and what has no effect ------------------------------------------------------------------------


def test_pods_of_a_scheduler_that_is_not_served_are_named_with_the_fix():
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    marked = [
        pod(name, labels={"hami.io/dra": "true"}, schedulerName="hami-scheduler", resourceClaims=entries)
        for name in "ab"
    ]
    by_claim = pod("c", schedulerName="volcano", resourceClaims=entries)
    others = [
        pod("placed", schedulerName="volcano", nodeName="n1", resourceClaims=entries),
        pod("plain", schedulerName="volcano"),
        pod("served", resourceClaims=entries),
    ]
    wanted = claim("c")
    name = wanted.spec.devices.requests[0].exactly.device_class_name
    device_class = msgspec.convert({"metadata": {"name": name}, "spec": {}}, DeviceClass)
    chosen = {"pods": [*marked, by_claim, *others], "claims": [wanted], "classes": [device_class]}
    found = {each.object: each for each in findings("schedulers", **chosen)}
    assert set(found) == {"Pod default/a and 1 more", "Pod default/c"}
    assert found["Pod default/c"].problem.startswith(
        "it gets no devices: spec.schedulerName is volcano, and hami-dra places"
    )
    assert found["Pod default/c"].fix.startswith("remove the line, or run a kube-scheduler profile")
    assert (
        findings("schedulers", scheduler_names=frozenset({"volcano", "hami-scheduler", "default-scheduler"}), **chosen)
        == []
    )
    assert findings("schedulers", mode="native", **chosen) == []


def test_pods_that_were_not_converted_are_named_with_the_fix():
    waiting = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    raw = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": containers}, "status": waiting}
    (found,) = findings("unconverted", pods=[msgspec.convert(raw, Pod)])
    assert found.object == "Pod team/p"
    assert found.problem.endswith("it has no claim, and no device plugin serves it")
    assert "kubectl label namespace team hami.io/webhook=enabled" in found.fix


def test_what_has_no_effect_is_said_once():
    said = "annotation hami.io/x has no effect"
    (found,) = findings("notices", notices={"Pod team/b": (said,), "Deployment team/a": (said,)})
    assert (found.object, found.problem) == ("Deployment team/a and 1 more", said)


def test_what_exclusive_mode_left_behind_in_native_mode():
    native = admission(
        without=[
            ("ValidatingAdmissionPolicy", "fence.hami.io"),
            ("MutatingAdmissionPolicy", "gate.hami.io"),
            ("MutatingAdmissionPolicy", "protect.hami.io"),
        ]
    )
    well = {"mode": "native", "rules": [], "live": live(admission=native)}
    assert findings("leftovers", **well) == []
    taint = {"key": names.FENCE_TAINT, "effect": "NoSchedule"}
    ill = {"mode": "native", "slices": [slice_of("n1", [card(0, taints=[taint])])], "pods": [gated()]}
    assert [each.object for each in findings("leftovers", **ill)] == [
        f"DeviceTaintRule hami-dra-fence-{DRIVER}",
        "MutatingAdmissionPolicy gate.hami.io",
        "MutatingAdmissionPolicy protect.hami.io",
        "Pod default/p",
        f"ResourceSlices of {DRIVER}",
        "ValidatingAdmissionPolicy fence.hami.io",
    ]


def test_what_is_left_when_somebody_took_hami_dra_out_by_hand():
    gone = live(admission=dict.fromkeys(ADMISSION_KINDS, ()), lease=None, webhook=None)
    report = examine(state(live=gone, rules=[rule()], pods=[gated()]))
    left = [each for each in report.findings if each.check == "leftovers"]
    assert [each.object for each in left] == [
        f"DeviceTaintRule hami-dra-fence-{DRIVER}",
        "Pod default/p",
    ]
    assert {each.fix for each in left} == {"hami-dra uninstall"}
    assert not [each for each in report.findings if each.check in {"fence", "policies", "webhook"}]


def test_a_cluster_that_hami_dra_left_or_never_came_to_is_not_ill():
    denied = replace(needed_rights(shipped("manifests"), ["hami-dra-driver"])[0], allowed=False)
    gone = live(admission=dict.fromkeys(ADMISSION_KINDS, ()), lease=None, webhook=None, rights=(denied,))
    report = examine(state(live=gone, rules=[]))
    assert [(each.check, each.severity) for each in report.findings] == [("controller", "warning")]
    assert report.healthy


# --- what is on offer -----------------------------------------------------------------------------------------------------------


def test_classes_that_clash():
    classes = [device_class("a", "nvidia.com/gpu"), device_class("b", "nvidia.com/gpu", NEW), device_class("c")]
    found = one("classes", classes=classes)
    assert (found.severity, found.object) == ("warning", "DeviceClass a, b")
    assert "Kubernetes takes the one created last, b" in found.problem
    assert one("classes", classes=classes, mode="native").severity is Severity.ERROR
    assert findings("classes", classes=classes[1:]) == []


def test_pools_that_are_incomplete_or_in_two_generations_and_slices_of_nodes_that_are_gone():
    found = one("slices", slices=[slice_of("n1", [card(0)], count=3)])
    assert (found.severity, found.object) == ("error", f"Pool {DRIVER}/n1")
    assert "resourceSliceCount is 3" in found.problem
    found = one("slices", slices=[slice_of("n1", [card(0)], generation=2), slice_of("n1", [card(0)], name="old")])
    assert "generations 1, 2" in found.problem
    found = one("slices", slices=[slice_of("n9", [card(0)])])
    assert (found.object, found.fix) == ("Node n9", f"kubectl delete resourceslice n9-{DRIVER}")
    assert findings("slices", slices=[slice_of("n9", [card(0)])], nodes=[]) == []


def test_a_device_plugin_beside_the_driver():
    both = node("n1", allocatable={"cpu": "8", "nvidia.com/gpu": "2"})
    found = one("device-plugin", nodes=[both])
    assert found.object == "Node n1"
    assert "nvidia.com/gpu" in found.problem
    assert findings("device-plugin", nodes=[node("n1", allocatable={"cpu": "8", "nvidia.com/gpu": "0"})]) == []
    assert findings("device-plugin", nodes=[both], slices=[]) == []


CLUSTER = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"


def in_clique(*numbers):
    cards = [card(index) for index in range(len(numbers))]
    for each, number in zip(cards, numbers, strict=True):
        each["attributes"] |= {"clusterUUID": {"string": CLUSTER}, "cliqueID": {"int": number}}
    return [slice_of("n1", cards)]


def test_the_label_says_in_which_clique_the_cards_are():
    def labelled(value):
        return [node("n1", labels={"nvidia.com/gpu.clique": value})]

    assert findings("cliques", slices=in_clique(2, 2), nodes=labelled(f"{CLUSTER}.2")) == []
    assert findings("cliques") == []
    missing = one("cliques", slices=in_clique(2, 2))
    assert (missing.object, missing.severity) == ("Node n1", Severity.WARNING)
    assert f"kubectl label node n1 nvidia.com/gpu.clique={CLUSTER}.2" in missing.fix
    other = one("cliques", slices=in_clique(2), nodes=labelled(f"{CLUSTER}.1"))
    assert f"is {CLUSTER}.1, but its GPUs are in {CLUSTER}.2" in other.problem
    assert "--overwrite" in other.fix
    assert f"{CLUSTER}.1, {CLUSTER}.2" in one("cliques", slices=in_clique(1, 2)).problem
    assert findings("cliques", slices=in_clique(2), nodes=[]) == []


# --- who has what ---------------------------------------------------------------------------------------------------------------

USER = pod("p", nodeName="n1", resourceClaims=[{"name": "gpu", "resourceClaimName": "a"}])


@pytest.mark.parametrize(
    ("leaking", "words"),
    [
        (held(reserved=()), "no pod uses it"),
        (held(reserved=("ghost",)), "reserved for ghost, which does not exist"),
        (held(deletionTimestamp=OLD), "on its way out for 1 hour"),
    ],
    ids=["unused", "ghost", "stuck"],
)
def test_claims_that_leak(leaking, words):
    found = one("claims", claims=[leaking])
    assert (found.severity, found.object) == ("error", "ResourceClaim default/a")
    assert words in found.problem


def test_claims_that_do_not_leak():
    assert findings("claims", claims=[held()], pods=[USER]) == []
    assert findings("claims", claims=[held(reserved=())], pods=[USER]) == []
    assert findings("claims", claims=[held(reserved=(), at=NEW)]) == []
    assert findings("claims", claims=[held(reserved=(), ours=False)]) == []


def test_devices_that_are_given_away_twice_or_by_others():
    found = findings("devices", claims=[held("a", memory="10Gi"), held("b", memory="10Gi")], pods=[USER])
    assert [(each.severity, each.object) for each in found] == [("error", f"Device {DRIVER}/n1/gpu-0")]
    assert "default/a, default/b" in found[0].problem
    found = one("devices", claims=[held(ours=False)], pods=[USER])
    assert (found.severity, found.object) == ("warning", "ResourceClaim default/a")
    assert findings("devices", claims=[held(ours=False)], pods=[USER], mode="native") == []
    assert findings("devices", claims=[held("a"), held("b")], pods=[USER]) == []


def test_a_card_and_a_part_of_it_at_once():
    draws = {"counterSet": "gpu-0", "counters": {"slice": {"value": "1"}}}
    both = [card(0, consumesCounters=[draws]), card(1, consumesCounters=[draws])]
    sets = [{"name": "gpu-0", "counters": {"slice": {"value": "1"}}}]
    slices = [
        slice_of("n1", both, name="devices", count=2),
        slice_of("n1", name="counters", count=2, nodeName="n1", sharedCounters=sets),
    ]
    found = one("devices", slices=slices, claims=[held("a"), held("b", "gpu-1")], pods=[USER])
    assert (found.severity, found.object) == ("error", f"Pool {DRIVER}/n1")
    assert "gpu-0/slice" in found.problem
    assert findings("devices", slices=slices, claims=[held("a")], pods=[USER]) == []


def test_devices_that_are_held_and_not_published():
    found = one("devices", claims=[held(device="gpu-9")], pods=[USER])
    assert (found.severity, found.object) == ("warning", f"Device {DRIVER}/n1/gpu-9")
    incomplete = [slice_of("n1", [card(0)], count=2)]
    assert findings("devices", claims=[held()], pods=[USER], slices=incomplete) == []


def refused_on_n1(said, *, profile="default-scheduler", at=OLD, ours=True):
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    raw = msgspec.json.decode(msgspec.json.encode(held(at=at, ours=ours)))
    raw["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [pinned]}
    user = pod("p", schedulerName=profile, resourceClaims=[{"name": "gpu", "resourceClaimName": "a"}])
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=said)
    user = msgspec.structs.replace(user, status=PodStatus(conditions=(condition,)))
    return {"claims": [msgspec.json.decode(msgspec.json.encode(raw), type=ResourceClaim)], "pods": [user]}


def test_a_pod_that_is_refused_where_its_devices_are():
    elsewhere = "40 resourceclaim not available on the node"
    said = f"0/41 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity, {elsewhere}. preemption: no"
    found = one("refusals", **refused_on_n1(said, profile="pinned"))
    assert (found.severity, found.object) == ("warning", "Pod default/p")
    assert "on node n1" in found.problem
    assert "plugin NodeAffinity, by the profile's addedAffinity of the profile pinned" in found.problem
    assert found.problem.endswith("it says: 1 node(s) didn't match scheduler-enforced node affinity")
    haunted = f"0/41 nodes are available: 1 node(s) are haunted, {elsewhere}."
    assert "a plugin out of tree or an extender of the profile" in one("refusals", **refused_on_n1(haunted)).problem
    assert findings("refusals", **refused_on_n1(f"0/41 nodes are available: {elsewhere}.")) == []
    assert findings("refusals", **refused_on_n1(said, at=NEW)) == []
    assert findings("refusals", **refused_on_n1(said, ours=False)) == []
    assert findings("refusals", **refused_on_n1(said), mode="native") == []


def test_pods_that_wait_behind_the_gate():
    found = one("pods", pods=[gated()])
    assert (found.severity, found.object) == ("warning", "Pod default/p")
    assert "1 hour" in found.problem
    assert found.fix == "hami-dra explain p -n default"
    assert "kueue" in one("pods", pods=[gated(gates=(names.GATE, "kueue"))]).problem
    assert findings("pods", pods=[gated(created=NEW)]) == []
    assert findings("pods", pods=[gated(gates=("kueue",))]) == []


def test_quotas():
    assert findings("quotas", quotas=[quota(**{"limits.nvidia.com/gpumem": "20480", "limits.cpu": "4"})]) == []
    found = one("quotas", quotas=[quota(**{"limits.nvidia.com/gpumemory": "20480"})])
    assert "limits.nvidia.com/gpumemory" in found.problem
    assert found.fix.endswith("limits.nvidia.com/gpumem")
    found = one("quotas", quotas=[quota(**{"limits.nvidia.com/gpumem": "1024"})], claims=[held()], pods=[USER])
    assert "4096 of 1024 MiB in use, more than the limit" in found.problem


def test_ages():
    assert older(None, NOW, timedelta(hours=1))
    assert older("not a time", NOW, timedelta(hours=1))
    assert not older("2026-11-21T12:30:00Z", NOW, timedelta(seconds=1))
    assert [in_words(timedelta(seconds=seconds)) for seconds in (5, 61, 7200, 90_000)] == [
        "5 seconds",
        "1 minute",
        "2 hours",
        "1 day",
    ]
    assert in_words(None) == "an unknown time"
