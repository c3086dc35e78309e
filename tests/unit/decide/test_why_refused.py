"""The one sentence about a refused pod: what fails with both figures, never or now, and the fix."""

import re
from itertools import combinations, product

import msgspec
import pytest

from controller.decide import Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.inventory.inventory import Inventory
from controller.reasons.reason import MOST, with_command
from controller.scoring.policies import DevicePolicy, Policies
from controller.scoring.policy_resolution import resolve_policies
from hami_dra.api.resource import ResourceClaim
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of, whole
from tests.support.assumed import assume

WIDE = "net.example.com"
T4, A10G = "Tesla T4", "NVIDIA A10G"


def cluster(**nodes):
    """Nodes by name, each with its cards; by default 2 T4 on a and 2 A10G on b."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for name, cards in (nodes or {"a": (T4, T4), "b": (A10G, A10G)}).items():
        inventory.node_changed(None, node(name))
        memory = {T4: "15Gi", A10G: "22Gi"}
        devices = [
            card(i, product=each, memory=memory[each]) if isinstance(each, str) else each
            for i, each in enumerate(cards)
        ]
        inventory.slice_changed(None, slice_of(name, devices))
    return inventory


def reason_of(inventory, *requests, device_policy="spread", spec=None, **options):
    policies = Policies(device_policy=DevicePolicy((device_policy,)))
    claims = (PodClaim("c", claim("c", list(requests))),) if requests else ()
    wanted = SchedulingRequest(pod=pod("p", **(spec or {})), claims=claims, policies=policies, **options)
    answer = decide(inventory, wanted, Options())
    assert isinstance(answer, Unschedulable), answer
    return answer


def use(inventory, node_name, *devices, memory="2Gi", cores="0"):
    results = [
        {
            "request": "gpu",
            "driver": DRIVER,
            "pool": node_name,
            "device": f"gpu-{number}",
            "shareID": f"s{number}",
            "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
        }
        for number in devices
    ]
    assume(inventory, f"held-{node_name}-{devices}-{memory}", {"devices": {"results": results}})


NEVER = {
    "memory": (
        [request(memory="80Gi")],
        "needs 81920 MiB on one device; the largest has 22528 MiB (NVIDIA A10G), so it never will",
    ),
    "memory on each": (
        [request(count=2, memory="80Gi")],
        "needs 81920 MiB on each of 2 devices; the largest has 22528 MiB (NVIDIA A10G), so it never will",
    ),
    "cores": (
        [request(cores="150", memory="1Gi")],
        "needs 150 cores on one device; the largest has 100 cores (Tesla T4), so it never will",
    ),
    "devices": (
        [request(count=3)],
        "needs 3 whole devices on one node; the most a node has is 2 (a), so it never will",
    ),
    "devices of a size": (
        [request(count=3, memory="20Gi", cores="0")],
        "needs 3 devices with 20480 MiB each on one node; the most a node has is 2 (b), so it never will",
    ),
    "requests together": (
        [request("one", count=2), request("two", count=1)],
        "needs 3 whole devices on one node, all requests together; the most a node has is 2 (a), so it never will",
    ),
    "requests apart": (
        [
            request("t4", selectors=['device.attributes["hami.io"].productName == "Tesla T4"']),
            request("a10g", selectors=['device.attributes["hami.io"].productName == "NVIDIA A10G"']),
        ],
        "needs 2 whole devices on one node (1 for t4, 1 for a10g); no node has all of them: t4 on 1 node, a10g on 1 node, so it never will",
    ),
    "selector": (
        [request(selectors=['device.attributes["hami.io"].productName == "H100"'])],
        (
            'selector device.attributes["hami.io"].productName == "H100" matches no device; '
            "there are NVIDIA A10G (2), Tesla T4 (2). Correct the selector"
        ),
    ),
    "alternatives": (
        [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "large", **request(memory="80Gi")["exactly"]},
                    {"name": "pair", **request(count=3)["exactly"]},
                ],
            }
        ],
        (
            "request gpu/pair: needs 3 whole devices on one node; the most a node has is 2 (a); "
            "request gpu/large: needs 81920 MiB on one device, the largest has 22528 MiB (NVIDIA A10G), so it never will"
        ),
    ),
    "capacity": (
        [request(mem="1Gi")],
        'capacity "mem" is not published; published: cores, memory, shares. Correct the name in capacity.requests',
    ),
}


@pytest.mark.parametrize(("requests", "sentence"), NEVER.values(), ids=NEVER)
def test_what_can_never_be_met(requests, sentence):
    for inventory in (cluster(), cluster()):
        answer = reason_of(inventory, *requests)
        assert answer.message == f"no node fits: {sentence}"
        assert answer.reason.never
        use(inventory, "a", 0, 1, memory="15Gi", cores="100")
        assert reason_of(inventory, *requests).message == answer.message


def test_a_class_of_which_there_is_no_device_names_the_request():
    inventory = cluster()
    inventory.class_changed(None, device_class("metax-gpu", 'device.driver == "metax.hami.io"'))
    answer = reason_of(inventory, request("gpu"), request("metax-0", class_name="metax-gpu"))
    assert answer.message == (
        "no node fits: request metax-0: needs a device of DeviceClass metax-gpu; this cluster has only NVIDIA A10G (2), Tesla T4 (2). "
        "Start its driver, which publishes ResourceSlices, or ask for another class"
    )


WHOLE = "needs a whole device; all 4 have tenants"
NOW = {
    "memory": (
        [request(memory="14Gi", cores="0")],
        "needs 14336 MiB on one device; the most free is 10240 MiB (NVIDIA A10G on b)",
    ),
    "a whole device": ([request()], WHOLE),
    "a claim that leaves the cores out": (
        [request(memory="1Gi")],
        f'{WHOLE}. The request names no cores, which means all of them: add cores: "0" to its capacity.requests',
    ),
    "whole devices": ([request(count=2)], "needs 2 whole devices on one node; the most without a tenant are 0 (a)"),
    "cores": (
        [request(memory="1Gi", cores="90")],
        "needs 90 cores on one device; the most free is 80 cores (Tesla T4 on a)",
    ),
    "devices": (
        [request(count=2, memory="14Gi", cores="0")],
        "needs 2 devices with 14336 MiB each on one node; the most that fit on a node now are 0 (a)",
    ),
}


@pytest.mark.parametrize(("requests", "sentence"), NOW.values(), ids=NOW)
def test_what_is_in_use_now(requests, sentence):
    inventory = cluster()
    use(inventory, "a", 0, 1, memory="12Gi", cores="20")
    use(inventory, "b", 0, 1, memory="12Gi", cores="20")
    answer = reason_of(inventory, *requests)
    assert answer.message == f"no node fits now: {sentence}"
    assert not answer.reason.never


def test_slots_idle_devices_and_faults():
    full = cluster(a=[card(0, shares="1")])
    use(full, "a", 0, memory="1Gi")
    part = request(memory="1Gi", cores="0")
    assert (
        reason_of(full, part).message
        == "no node fits now: needs a device with 1024 MiB; all slots of 1 device are taken"
    )
    shared = cluster()
    use(shared, "a", 0, 1)
    use(shared, "b", 0, 1)
    assert (
        reason_of(shared, part, device_policy="mutex").message
        == "no node fits now: needs an idle device; all 4 have tenants"
    )
    ill = cluster(a=[card(0, taints=[{"key": "xid", "value": "79", "effect": "NoExecute"}])])
    assert reason_of(ill, part).message == (
        "no node fits now: needs a device with 1024 MiB; 1 device that would do is not healthy (taint xid=79:NoExecute)"
    )


def test_devices_of_no_node_in_particular():
    """Of a driver whose devices every node reaches."""
    inventory = cluster(a=(), b=())
    inventory.class_changed(None, device_class("wide", f'device.driver == "{WIDE}"'))
    published = slice_of("net", [card(0), card(1)], pool="net", name="net", driver=WIDE, allNodes=True)
    inventory.slice_changed(None, published)
    assert reason_of(inventory, request(class_name="wide", count=3)).message == (
        "no node fits: needs 3 whole devices on one node; the most a node has is 2 (a), so it never will"
    )
    results = [{"request": "r", "driver": WIDE, "pool": "net", "device": "gpu-0", "shareID": "s"}]
    results[0]["consumedCapacity"] = {"memory": "16Gi", "cores": "100", "shares": "1"}
    assume(inventory, "held", {"devices": {"results": results}})
    assert reason_of(inventory, request(class_name="wide", count=2)).message.startswith(
        "no node fits now: needs 2 whole devices"
    )


def test_exclusive_devices_without_capacities():
    inventory = cluster(a=[whole(0), whole(1)])
    assume(
        inventory,
        "held",
        {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "a", "device": "dev-0"}]}},
    )
    assert reason_of(inventory, request(count=2)).message == (
        "no node fits now: needs 2 whole devices on one node; the most without a tenant are 1 (a)"
    )


# --- nodes -------------------------------------------------------------------------------------------


def labelled(**labels):
    inventory = cluster()
    for name, value in labels.items():
        inventory.node_changed(None, node(name, labels={"zone": value}))
    return inventory


def required(*expressions):
    terms = [{"matchExpressions": list(expressions)}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


PART = request(memory="1Gi", cores="0")
LABELS = {
    "no such label": (
        {"nodeSelector": {"gpu": "t4"}},
        "nodeSelector wants gpu=t4; no node has the label gpu. Label a node, or change nodeSelector",
    ),
    "another value": (
        {"nodeSelector": {"zone": "z"}},
        "nodeSelector wants zone=z; on the nodes zone is x, y. Label a node, or change nodeSelector",
    ),
    "affinity": (
        required({"key": "zone", "operator": "In", "values": ["z"]}),
        "the required node affinity wants zone In (z); on the nodes zone is x, y. Label a node, or change the affinity",
    ),
    "each on another node": (
        {"nodeSelector": {"zone": "x"}, **required({"key": "zone", "operator": "In", "values": ["y"]})},
        "no node has all labels that nodeSelector and the required node affinity want; each of them is on some node. Change one of them",
    ),
}


@pytest.mark.parametrize(("spec", "sentence"), LABELS.values(), ids=LABELS)
def test_labels(spec, sentence):
    answer = reason_of(labelled(a="x", b="y"), PART, spec=spec)
    assert answer.message == f"no node fits: {sentence}"
    assert answer.reason.code == "NodeAffinityNotMatch"


TOPOLOGY_KEYS = {
    "spread": (
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ]
        },
        "a topology spread constraint has topologyKey rack; no node has this label. Label the nodes, or change topologyKey",
    ),
    "affinity": (
        {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack", "labelSelector": {}}]
                }
            }
        },
        "the pod affinity has topologyKey rack; no node has this label. Label the nodes, or change topologyKey",
    ),
}


@pytest.mark.parametrize(("spec", "sentence"), TOPOLOGY_KEYS.values(), ids=TOPOLOGY_KEYS)
def test_a_topology_key_that_no_node_has_never_fits(spec, sentence):
    answer = reason_of(cluster(), PART, spec=spec)
    assert answer.message == f"no node fits: {sentence}"
    assert answer.reason.kind == "label"


def test_a_pod_that_must_be_near_another_says_which():
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}]
    inventory = cluster()
    for name in "ab":
        inventory.node_changed(None, node(name, labels={"kubernetes.io/hostname": name}))
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    assert reason_of(inventory, PART, spec=spec).message == (
        "no node fits now: on a: InterPodAffinity: no pod with app=db runs on this node, which the pod's affinity requires; "
        "1 other node with such devices is refused as well (b). It fits once such a pod runs there; else change the affinity"
    )


def test_a_label_that_says_which_node_it_is_cannot_be_added():
    inventory = labelled(a="x")
    spec = {"nodeSelector": {"kubernetes.io/hostname": "c"}}
    for name in "ab":
        inventory.node_changed(None, node(name, labels={"kubernetes.io/hostname": name}))
    assert reason_of(inventory, PART, spec=spec).message == (
        "no node fits: nodeSelector wants kubernetes.io/hostname=c; on the nodes kubernetes.io/hostname is a, b. "
        "Change nodeSelector"
    )


def test_devices_of_a_node_that_does_not_exist_are_said_to_be_there():
    inventory = cluster()
    inventory.slice_changed(None, slice_of("c", [card(0, memory="64Gi")]))
    inventory.slice_changed(None, slice_of("d", [card(0, memory="64Gi")]))
    assert reason_of(inventory, request(memory="50Gi", cores="0")).message == (
        "no node fits now: needs a device with 51200 MiB; the 2 devices that could give it are on nodes that do not exist (c, d). "
        "See kubectl get nodes"
    )


def test_a_cluster_without_nodes_says_so():
    assert reason_of(Inventory(), spec={}).message == "no node fits now: the cluster has no nodes"


def test_a_label_of_nodes_without_devices():
    inventory = labelled(a="x", b="x")
    inventory.node_changed(None, node("c", labels={"zone": "cpu"}))
    assert (
        "only 1 node without the requested devices has it"
        in reason_of(inventory, PART, spec={"nodeSelector": {"zone": "cpu"}}).message
    )


def test_an_amount_that_no_policy_allows_comes_with_those_that_are_allowed():
    odd = card(0)
    odd["capacity"]["slices"] = {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1", "2", "4"]}}
    odd["capacity"]["bandwidth"] = {
        "value": "8Gi",
        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
    }
    inventory = cluster(a=[odd])
    assert reason_of(inventory, request(slices="9")).message == (
        "no node fits: asks for slices=9, which the requestPolicy of no device allows; allowed: slices 1, 2, 4, so it never will"
    )
    assert "; allowed: bandwidth 1Gi to 8Gi in steps of 1Gi" in reason_of(inventory, request(bandwidth="9Gi")).message


def test_taints_cordons_and_resources():
    inventory = cluster()
    inventory.node_changed(None, node("a", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}]))
    inventory.node_changed(
        None, node("b", taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}])
    )
    only_a = {"nodeSelector": {"zone": "x"}}
    inventory.node_changed(
        None, node("a", labels={"zone": "x"}, taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}])
    )
    assert reason_of(inventory, PART, spec=only_a).message == (
        "no node fits: the pod does not tolerate taint team=red:NoSchedule; 1 node with the requested devices carries it (a). "
        "Add a toleration, or remove the taint"
    )
    inventory.node_changed(None, node("a", labels={"zone": "x"}, unschedulable=True))
    assert reason_of(inventory, PART, spec=only_a).message == (
        "no node fits now: 1 node with the requested devices is cordoned (a). Uncordon it (kubectl uncordon a)"
    )
    inventory = cluster()
    cpu = {"containers": [{"name": "x", "resources": {"requests": {"cpu": "9"}}}]}
    answer = reason_of(inventory, PART, spec=cpu)
    assert answer.message == "no node fits: needs 9 CPU on one node; the most a node offers is 8 (a), so it never will"


OBSTACLES = {
    "cordoned": ({"unschedulable": True}, r"cordoned"),
    "not ready": ({"ready": "False"}, r"not ready"),
    "red": (
        {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]},
        r"team=red:NoSchedule|carr\S+ (it|them)",
    ),
    "dark": ({"taints": [{"key": "dark", "effect": "NoExecute"}]}, r"dark:NoExecute|carr\S+ (it|them)"),
}
SUBSETS = [each for size in (1, 2, 3, 4) for each in combinations(OBSTACLES, size)]


def repelling(inventory, name, obstacles):
    settings = [OBSTACLES[each][0] for each in obstacles]
    taints = [taint for each in settings for taint in each.get("taints", ())]
    inventory.node_changed(
        None, node(name, **{key: each[key] for each in settings for key in each} | {"taints": taints})
    )


@pytest.mark.parametrize(("of_a", "of_b"), list(product(SUBSETS, SUBSETS)))
def test_everything_that_keeps_a_pod_off_two_nodes_is_said_with_the_name_of_the_node(of_a, of_b):
    inventory = cluster()
    repelling(inventory, "a", of_a)
    repelling(inventory, "b", of_b)
    reason = reason_of(inventory, PART).reason
    parts = reason.best.split("; ") if reason.kind == "taint" else [reason.asked, *reason.best.split("; ")]
    for name, obstacles in (("a", of_a), ("b", of_b)):
        (part,) = [each for each in parts if re.search(rf"\(.*\b{name}\b.*\)", each)]
        assert all(re.search(OBSTACLES[each][1], part) for each in obstacles), part
    said = f"{reason.asked}; {reason.best}"
    assert all(re.search(OBSTACLES[each][1].partition("|")[0], said) for each in {*of_a, *of_b}), said
    least = min((of_a, of_b), key=len)
    assert ("ncordon" in reason.fix) >= ("cordoned" in least)
    assert ("toleration" in reason.fix) >= bool({"red", "dark"} & {*least})
    assert reason.never == all({"red", "dark"} & {*each} for each in (of_a, of_b))


def test_a_node_that_is_tainted_and_cordoned_and_one_that_is_cordoned_and_not_ready():
    inventory = cluster()
    repelling(inventory, "a", ["red", "cordoned"])
    repelling(inventory, "b", ["red", "dark", "not ready"])
    assert reason_of(inventory, PART).message == (
        "no node fits: the pod does not tolerate taint team=red:NoSchedule; "
        "1 node with the requested devices carries it and is cordoned (a); "
        "1 more carries taints team=red:NoSchedule, dark:NoExecute, not tolerated, and is not ready (b). "
        "Add a toleration, or remove the taint; and uncordon it (kubectl uncordon a)"
    )


def test_a_node_whose_port_is_taken_may_have_what_the_others_lack():
    inventory = cluster()
    inventory.node_changed(None, node("a", allocatable={"cpu": "64", "pods": "9"}))
    port = {"containers": [{"name": "x", "ports": [{"hostPort": 8080}], "resources": {"requests": {"cpu": "9"}}}]}
    inventory.pod_changed(None, pod("there", nodeName="a", **port))
    assert reason_of(inventory, PART, spec=port).message == (
        "no node fits now: needs 9 CPU on one node; the most free is 8 of 8 (b)"
    )


def test_up_to_three_nodes_are_named():
    names = [f"n{number}" for number in range(5)]
    for count, text in ((2, "2 nodes with the requested devices are cordoned (n0, n1). "), (4, "(n0, n1, n2, ...). ")):
        inventory = cluster(**dict.fromkeys(names[:count], (T4,)))
        for name in names[:count]:
            repelling(inventory, name, ["cordoned"])
        message = reason_of(inventory, PART).message
        assert message.endswith(text + "Uncordon one of them (kubectl uncordon n0)")


def test_a_node_that_only_repels_is_said_beside_what_the_others_lack():
    inventory = cluster()
    inventory.node_changed(None, node("a", unschedulable=True, allocatable={"cpu": "64", "pods": "9"}))
    cpu = {"containers": [{"name": "x", "resources": {"requests": {"cpu": "9"}}}]}
    assert reason_of(inventory, PART, spec=cpu).message == (
        "no node fits now: needs 9 CPU on one node; the most a node offers is 8 (b); 1 more is cordoned (a). "
        "Uncordon it (kubectl uncordon a)"
    )
    cpu["containers"][0]["resources"]["requests"]["cpu"] = "99"
    assert "cordoned" not in reason_of(inventory, PART, spec=cpu).message, "too small as well"


def test_the_nominated_node_name_of_a_pod_is_named():
    answer = reason_of(cluster(), request(memory="20Gi", cores="0"), required_node="a")
    assert answer.message == (
        "no node fits: spec.nodeName is a; 1 other node could meet its requests. Remove nodeName, so that hami-dra can choose"
    )


# --- texts that others wrote --------------------------------------------------------------------------


def test_names_are_cut_and_made_printable():
    answer = reason_of(cluster(), request(**{"m\x1b[31m" + "x" * 500: "1Gi"}))
    assert "\x1b" not in answer.message
    assert len(answer.message) < 400
    spec = {"nodeSelector": {"k" * 300: "v\n" * 300}}
    assert len(reason_of(cluster(), PART, spec=spec).message) < 500


def test_the_whole_sentence_is_never_longer_than_an_event_may_be():
    sentence = with_command("x" * 5_000, "n" * 63 + "/" + "p" * 253, {f"Code{number}": number for number in range(9)})
    assert len(sentence) == MOST
    assert sentence.endswith("[8 nodes Code8, 7 nodes Code7, 6 nodes Code6, 5 nodes Code5, ...]")


def test_a_selector_that_fails_on_every_device_is_an_error_also_when_all_are_in_use():
    inventory = cluster()
    wrong = request(selectors=['device.attributes["gpu.example.com"].productName == "x"'])
    idle = reason_of(inventory, wrong)
    use(inventory, "a", 0, 1, memory="15Gi", cores="100")
    use(inventory, "b", 0, 1, memory="22Gi", cores="100")
    busy = reason_of(inventory, wrong)
    assert "selectors[0] fails on device" in idle.error
    assert busy.error == idle.error, "one device whatever is in use, so that events aggregate"
    assert 'no such key: productName; the device has device.attributes["hami.io"].productName' in busy.error


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            'attributes["hami.io"].productNam',
            'no such key: productNam; the closest name is device.attributes["hami.io"].productName;',
        ),
        ('attributes["hami.io"].memorySize', "no such key: memorySize; the closest name is device.capacity["),
        ('attributes["hami.io"].xyzzy', "no such key: xyzzy; there are cores, "),
        ('attributes["hami.io"].memory', 'no such key: memory; the device has device.capacity["'),
    ],
)
def test_a_selector_with_a_name_that_no_device_has_is_told_those_that_there_are(key, said):
    error = reason_of(cluster(), request(selectors=[f'device.{key} == "x"'])).error
    assert said in error
    assert len(error) < 500


# --- devices that must be given together --------------------------------------------------------------

NUMA = "resource.kubernetes.io/numaNode"


def wired(index, *, group=1, numa=0):
    """A card of a link group, on a NUMA node."""
    found = card(index)
    found["attributes"] |= {"hami.io/linkGroup": {"int": group}, NUMA: {"int": numa}}
    return found


def islands():
    """Node a: two islands of two cards, on two NUMA nodes; node b: one card in an island of its own."""
    return cluster(a=[wired(i, group=1 + i // 2, numa=i // 2) for i in range(4)], b=[wired(0)])


def set_reason(inventory, *requests, constraints=(), **annotations):
    raw = msgspec.to_builtins(claim("c", list(requests)))
    raw["spec"]["devices"]["constraints"] = list(constraints)
    asked, owner = msgspec.convert(raw, ResourceClaim), pod("p", annotations=annotations)
    policies = resolve_policies(owner, [asked], {}, inventory.classes, Policies())
    answer = decide(inventory, SchedulingRequest(owner, (PodClaim("c", asked),), policies), Options())
    assert isinstance(answer, Unschedulable), answer
    return answer


LINKED, BOUND = {"hami.io/gpu-topology": "required"}, {"nvidia.com/numa-bind": "true"}
SAME, DIFFERENT = {"matchAttribute": NUMA}, {"distinctAttribute": NUMA}
RELAX = "Relax the annotation, or ask for fewer devices"
DROP = "Ask for fewer devices, or drop the constraint"
NEVER_TOGETHER = {
    "linked": (
        [request(count=4)],
        [],
        LINKED,
        "needs 4 devices linked to each other (hami.io/gpu-topology=required); the largest island has 2 (a). " + RELAX,
    ),
    "one NUMA node": (
        [request(count=3, memory="1Gi", cores="0")],
        [],
        BOUND,
        "needs 3 devices on one NUMA node (nvidia.com/numa-bind=true); the most on one NUMA node is 2 (a). " + RELAX,
    ),
    "the same attribute": (
        [request(count=3, memory="1Gi", cores="0")],
        [SAME],
        {},
        f"needs 3 devices with the same {NUMA} (matchAttribute) on one node; the most a node has is 2 (a). {DROP}",
    ),
    "different attributes": (
        [request(count=3, memory="1Gi", cores="0")],
        [DIFFERENT],
        {},
        f"needs 3 devices with different {NUMA} (distinctAttribute) on one node; the most a node has is 2 (a). {DROP}",
    ),
    "an attribute of several requests": (
        [request("one", count=2), request("two")],
        [SAME],
        {},
        f"needs 3 devices for requests one, two with the same {NUMA} (matchAttribute) on one node; 2 of them could be given together (a). {DROP}",
    ),
    "an attribute that no device has": (
        [request(count=2)],
        [{"matchAttribute": "example.com/rack"}],
        {},
        (
            "needs 2 devices with the same example.com/rack (matchAttribute) on one node; no device has this attribute. "
            "Correct matchAttribute in the claim's constraints"
        ),
    ),
    "several requests": (
        [request("one", count=3, memory="12Gi", cores="0"), request("two", count=3, memory="12Gi", cores="0")],
        [],
        {},
        (
            "needs 6 devices with 12288 MiB each on one node (3 for one, 3 for two); "
            "4 of them could be given together (a), so it never will"
        ),
    ),
    "several requests for different amounts": (
        [
            request("one", count=3, memory="12Gi", cores="0"),
            request("two", count=2),
            request("three", memory="2Gi", cores="0"),
        ],
        [],
        {},
        (
            "needs 5 devices on one node (3 devices with 12288 MiB each for one, 2 whole devices for two); "
            "4 of them could be given together (a), so it never will"
        ),
    ),
}


@pytest.mark.parametrize(
    ("requests", "constraints", "annotations", "sentence"), NEVER_TOGETHER.values(), ids=NEVER_TOGETHER
)
def test_what_can_never_be_given_together(requests, constraints, annotations, sentence):
    idle, busy = islands(), islands()
    use(busy, "a", 0, 1, memory="15Gi", cores="100")
    answers = [set_reason(each, *requests, constraints=constraints, **annotations) for each in (idle, busy)]
    # one request of several may be short of devices already
    assert answers[0].message.startswith(f"no node fits: {sentence}")
    assert answers[1].reason == answers[0].reason
    assert answers[0].reason.never


def test_what_is_not_free_together_now():
    inventory = islands()
    use(inventory, "a", 1, 2, memory="15Gi", cores="100")
    assert set_reason(inventory, request(count=2), **LINKED).message == (
        "no node fits now: needs 2 devices linked to each other (hami.io/gpu-topology=required); "
        "1 node has enough free devices, the most 2 (a), and no such set is free"
    )
    assert set_reason(inventory, request(count=2), constraints=[SAME]).message == (
        f"no node fits now: needs 2 devices on one node with the same {NUMA} (matchAttribute); "
        "1 node has free devices for each request, the most 2 (a), and no such set is free"
    )


def test_only_nodes_that_could_give_such_a_set_count():
    """Node c has enough devices and no island; node a has one, and a taint."""
    inventory = islands()
    inventory.node_changed(None, node("a", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}]))
    inventory.node_changed(None, node("c"))
    inventory.slice_changed(None, slice_of("c", [wired(0, group=1), wired(1, group=2)]))
    assert "does not tolerate taint team=red" in set_reason(inventory, request(count=2), **LINKED).message


def test_nodes_that_are_published_again_are_judged_again():
    inventory = islands()
    assert set_reason(inventory, request(count=3), **LINKED).reason.never
    inventory.node_changed(None, node("c"))
    inventory.slice_changed(None, slice_of("c", [wired(i) for i in range(3)]))
    use(inventory, "c", 0)
    assert not set_reason(inventory, request(count=3), **LINKED).reason.never
    inventory.slice_changed(None, slice_of("c", [wired(i, group=i) for i in range(3)], version="2"))
    assert set_reason(inventory, request(count=3), **LINKED).reason.never


# --- some nodes refused for themselves, the others for their devices -----------------------------------

RED = [{"key": "team", "value": "red", "effect": "NoSchedule"}]
BUSY = "on the node that the pod may use: needs a whole device, all 2 have tenants"
MIXED = {
    "taint": (
        {"taints": RED},
        {},
        (
            f"the pod does not tolerate taint team=red:NoSchedule; 1 node with free devices carries it (a); {BUSY}. "
            "Add a toleration, or remove the taint"
        ),
    ),
    "label": (
        {"labels": {"zone": "y"}},
        {"nodeSelector": {"zone": "x"}},
        (
            f"nodeSelector wants zone=x; 1 node with free devices does not have it (a); {BUSY}. "
            "Label a node, or change nodeSelector"
        ),
    ),
    "affinity": (
        {"labels": {"zone": "y"}},
        required({"key": "zone", "operator": "In", "values": ["x"]}),
        (
            f"the required node affinity wants zone In (x); 1 node with free devices does not have it (a); {BUSY}. "
            "Label a node, or change the affinity"
        ),
    ),
    "cpu": (
        {"allocatable": {"cpu": "2", "pods": "9"}},
        {"containers": [{"name": "x", "resources": {"requests": {"cpu": "4"}}}]},
        f"needs 4 CPU on a node with free devices; the most a node offers is 2 (a); {BUSY}",
    ),
    "cordon": (
        {"unschedulable": True},
        {},
        f"1 node with free devices is cordoned (a); {BUSY}. Uncordon it (kubectl uncordon a)",
    ),
}


@pytest.mark.parametrize(("of_node", "spec", "sentence"), MIXED.values(), ids=MIXED)
def test_what_nodes_with_free_devices_lack_comes_before_devices_that_are_in_use(of_node, spec, sentence):
    inventory = cluster()
    use(inventory, "b", 0, 1)
    inventory.node_changed(None, node("b", labels={"zone": "x"}))
    inventory.node_changed(None, node("a", **of_node))
    answer = reason_of(inventory, request(), spec=spec)
    assert answer.message == f"no node fits now: {sentence}"
    assert not answer.reason.never
    use(inventory, "a", 0, 1)
    busy = reason_of(inventory, request(), spec=spec).message
    assert busy == "no node fits now: needs a whole device; all 2 have tenants", "no help: in use as well"


def test_nodes_whose_devices_could_never_meet_the_request_are_counted():
    inventory = cluster()
    inventory.node_changed(None, node("b", taints=RED))
    assert reason_of(inventory, request(memory="20Gi", cores="0")).message == (
        "no node fits: the pod does not tolerate taint team=red:NoSchedule; 1 node with the requested devices carries it (b); "
        "the devices of the other node could never meet it. Add a toleration, or remove the taint"
    )
