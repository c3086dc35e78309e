"""Native mode: no fence and no gate. kube-scheduler allocates, the webhook helps out, the controller accounts.

One installation for the module; the last test switches its mode and back, as an administrator would.
"""

import pytest

from controller.webhook.installation import manifests
from hack.controlplane.api import ApiError
from hack.installation import DRIVER, QUICK
from tests.e2e.lab import T4, allocated_by, is_gone
from tests.e2e.objects import claim, legacy_pod, part, pod, policies, template

GATE = {"name": "hami.io/allocation"}
SPECIAL = "resource.kubernetes.io/extended-resource-claim"  # on the claims that kube-scheduler makes (KEP-5004)
PROBES = (
    "/api/v1/namespaces/hami-dra-system/pods",
    "/apis/resource.k8s.io/v1/namespaces/hami-dra-system/resourceclaims",
)
WHOLE_T4 = 15 << 30


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation(mode="native")
    start(installation)
    return installation


def start(hami):
    hami.start_controller(*QUICK)
    hami.start_webhook()
    hami.wait_ready()


def switch(hami, mode):
    """The other mode's manifests in, what does not belong to it out, the programs started anew with it."""
    for program in hami.programs.values():
        program.process.stop()
    hami.install(mode=mode)
    wanted = {(item["kind"], item["metadata"]["name"]) for item in manifests(hami.choices)}
    for item in manifests():  # exclusive mode's are all there are
        if (item["kind"], item["metadata"]["name"]) not in wanted:
            hami.api.remove(item)
    start(hami)


@pytest.fixture
def back_to_native(hami):
    """For a test that switches, wherever it stops."""
    yield
    if hami.choices.mode != "native":
        switch(hami, "native")


def wait_accounted(lab, cards, memory):
    """Until the controller says that so many cards and bytes are in use."""
    controller = lab.hami.programs["controller"]

    def accounted():
        in_use = controller.metric("hami_dra_devices_in_use", driver=DRIVER)
        return (in_use, controller.metric("hami_dra_allocated_capacity", driver=DRIVER, capacity="memory"))

    lab.hami.wait_for(f"{cards} cards and {memory} bytes accounted for", lambda: accounted() == (cards, memory))


def test_a_plain_card_is_served_by_kube_scheduler_and_accounted_for(lab):
    """KEP-5004 through class nvidia-gpu.hami.io: the pod is not converted, nothing of ours is on its claim."""
    lab.machines(T4, "t4")
    lab.create(legacy_pod("one", gpu=1), legacy_pod("two", gpu=2))
    lab.wait_running(names=["one", "two"])

    for name, cards in (("one", 1), ("two", 2)):
        stored = lab.pod(name)
        assert stored["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": str(cards)}
        assert "resourceClaims" not in stored["spec"]
        assert "schedulingGates" not in stored["spec"]
        held = lab.claim(stored["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
        assert held["metadata"]["annotations"] == {SPECIAL: "true"}
        results = held["status"]["allocation"]["devices"]["results"]
        assert {(each["driver"], each["pool"]) for each in results} == {(DRIVER, "t4")}
        assert [each["consumedCapacity"]["memory"] for each in results] == ["15Gi"] * cards
        assert lab.bound_by(name) == "default-scheduler"
    assert lab.overcommitted() == []
    assert lab.hami.fence_rules() == []

    wait_accounted(lab, 3, 3 * WHOLE_T4)
    lab.delete_pod("two")
    wait_accounted(lab, 1, WHOLE_T4)


@pytest.mark.parametrize(
    ("machine", "resource", "driver"),
    [
        ("c500-8", "metax-tech.com/gpu", "metax.hami.io"),
        ("p800-oam-8", "kunlunxin.com/xpu", "kunlunxin.hami.io"),
        ("inf2.48xlarge", "aws.amazon.com/neuron", "neuron.hami.io"),
        ("s60-8", "enflame.com/gcu", "enflame.hami.io"),
    ],
)
def test_whole_cards_of_the_other_vendors_are_served_by_kube_scheduler(lab, machine, resource, driver):
    lab.machines(machine, "n")
    lab.create(pod("one", resources={"limits": {resource: "1"}}))
    lab.wait_running(names=["one"])
    stored = lab.pod("one")
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {resource: "1"}
    assert "resourceClaims" not in stored["spec"]
    held = lab.claim(stored["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
    (result,) = held["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (driver, "n")
    assert lab.bound_by("one") == "default-scheduler"
    assert lab.overcommitted() == []


def test_what_an_extended_resource_cannot_say_is_converted(lab):
    """Parts of cards and a choice among cards become claims, which kube-scheduler allocates: first-fit, no gate, no policy."""
    lab.machines(T4, "t4")
    asked = policies("spread", "spread")
    lab.create(legacy_pod("a", gpu=1, gpumem=5000, annotations=asked))
    lab.create(legacy_pod("b", gpu=1, gpumem=5000, gpucores=20, annotations=asked))
    found = lab.wait_running(names=["a", "b"])
    assert [each.devices for each in found] == [["t4/gpu-0"], ["t4/gpu-0"]]  # both policies say otherwise
    assert [each.memory for each in found] == [[5000 << 20], [5000 << 20]]
    assert all(item["metadata"]["labels"]["hami.io/dra"] == "true" for item in lab.pods())
    assert not any(map(allocated_by, lab.claims()))

    lab.create(legacy_pod("none", gpu=1, annotations={"nvidia.com/use-gputype": "A10"}))
    lab.create(legacy_pod("choosy", gpu=1, annotations={"nvidia.com/use-gputype": "T4"}))
    lab.wait_running(names=["a", "b", "choosy"])
    assert lab.placement("choosy").devices == ["t4/gpu-1"]
    assert "nodeName" not in lab.pod("none")["spec"]
    wait_accounted(lab, 2, (2 * 5000 << 20) + WHOLE_T4)
    assert lab.overcommitted() == []


def test_a_percentage_is_refused_with_the_fix(lab):
    """It is of the card that is chosen, and nobody but kube-scheduler chooses here."""
    with pytest.raises(ApiError) as refused:
        lab.create(legacy_pod("half", gpu=1, **{"gpumem-percentage": 50}))
    assert refused.value.status == 422
    assert f"Pod {lab.namespace}/half" in refused.value.message
    assert 'container "main"' in refused.value.message
    assert "in native mode kube-scheduler chooses; ask for MiB" in refused.value.message


def test_a_leftover_gate_is_lifted(lab):
    lab.machines(T4, "t4")
    lab.create(claim("part", part("1Gi")))
    lab.create(pod("gated", claims=["part"], schedulingGates=[GATE]))
    lab.wait_running(names=["gated"])
    assert not allocated_by(lab.claim("part"))


def test_a_gate_of_somebody_else_stays(lab):
    lab.machines(T4, "t4")
    lab.create(claim("part", part("1Gi")))
    foreign = {"name": "kueue.x-k8s.io/admission"}
    lab.create(pod("queued", claims=["part"], schedulingGates=[foreign, GATE]))
    lab.hami.wait_for("our gate lifted", lambda: gates(lab, "queued") == [foreign["name"]])


def test_a_switch_to_exclusive_and_back_loses_nothing_and_leaves_nothing(lab, hami, back_to_native):
    lab.machines(T4, "t4")
    lab.create(legacy_pod("native", gpu=3), legacy_pod("stuck", gpu=4))
    lab.wait_running(names=["native"])
    lab.api.wait_for("kube-scheduler's refusal", lambda: is_refused(lab.pod("stuck")))

    switch(hami, "exclusive")
    (rule,) = lab.hami.fence_rules("nvidia.hami.io")
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER}
    assert lab.wait_event("stuck", "WebhookBypassed", "Delete the pod and create it again")
    lab.create(template("most", part("9Gi", cores="10")))
    lab.create(legacy_pod("last", gpu=1))
    lab.wait_running(names=["native", "last"])
    lab.create(pod("late", templates=["most"]))
    lab.create(pod("held", templates=["most"], schedulingGates=[{"name": "example.com/later"}]))
    assert lab.placement("last").devices == ["t4/gpu-3"]  # what kube-scheduler allocated counts
    assert lab.wait_event("late", "FilteringFailed", "CardInsufficient")
    lab.delete_pod("native")
    lab.wait_running(names=["last", "late"])
    assert lab.overcommitted() == []
    assert sorted(gates(lab, "held")) == ["example.com/later", "hami.io/allocation"]

    switch(hami, "native")
    wait_clean(lab)
    lab.hami.wait_for("our gate lifted", lambda: gates(lab, "held") == ["example.com/later"])
    assert [each.pod for each in lab.wait_running(names=["last", "late"])] == ["last", "late"]
    wait_accounted(lab, 2, WHOLE_T4 + (9 << 30))
    lab.delete_pod("stuck")
    lab.create(legacy_pod("plain", gpu=3))
    lab.api.wait_for("kube-scheduler's refusal", lambda: is_refused(lab.pod("plain")))
    lab.delete_pod("last")
    lab.wait_running(names=["late", "plain"])
    assert lab.overcommitted() == []


def wait_clean(lab):
    """Nothing of exclusive mode: no fence, no probe, no policy, no taint in a slice."""
    api = lab.api
    lab.hami.wait_for("the fence gone", lambda: not lab.hami.fence_rules())
    for path in PROBES:
        assert api.list(path) == []
    assert is_gone(api, "/apis/resource.k8s.io/v1/deviceclasses/hami-dra-probe")
    admission = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"):
        assert is_gone(api, f"{admission}/{kind}/gate.hami.io")
    for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        assert is_gone(api, f"{admission}/{kind}/fence.hami.io")
    assert not any("taints" in device for item in lab.slices() for device in item["spec"]["devices"])


def gates(lab, name):
    return [gate["name"] for gate in lab.pod(name)["spec"].get("schedulingGates", ())]


def is_refused(item):
    conditions = item["status"].get("conditions", ())
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)
