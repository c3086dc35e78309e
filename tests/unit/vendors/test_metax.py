"""MetaX on whole nodes, through simulate: which node, which cards, why not; legacy names, claims, classes, parameters."""

import pytest

from controller.scoring.policies import Policies
from controller.webhook.convert import ConversionRefused, Options, convert_pod
from hami_dra.api.names import CONFIG_API_VERSION as API_VERSION
from hami_dra.vendors.metax.publish import MetaxPublishing
from tests.support.manifests import claim, node, pod, simulated, slices, template

CLASSES = MetaxPublishing().device_classes()
GPU, SGPU, CORES, MEMORY = (f"metax-tech.com/{name}" for name in ("gpu", "sgpu", "vcore", "vmemory"))
QOS = "metax-tech.com/sgpu-qos-policy"
USE, NOUSE = "metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"
SPREAD, BINPACK = {"hami.io/node-scheduler-policy": "spread"}, {"hami.io/node-scheduler-policy": "binpack"}
PENALTY = {"metax-tech.com/spread-topology": "penalty"}
PACKED = {"hami.io/gpu-scheduler-policy": "binpack"}


def cluster(*names, **zones):
    """Nodes with eight C500 in two zones; `zones`: node → zone of each of its cards, 0 = none and no links."""
    raws = list(CLASSES)
    for name in (*names, *zones):
        raws.append(node(name, labels={"name": name}))
        for raw in slices(name, "c500-8"):
            for device in raw["spec"]["devices"]:
                if name in zones:
                    rezone(device["attributes"], zones[name])
            raw["spec"]["devices"] = raw["spec"]["devices"][: len(zones.get(name, range(8)))]
            raws.append(raw)
    return raws


def rezone(attributes, zones):
    number = attributes["hami.io/index"]["int"]
    del attributes["hami.io/links"], attributes["hami.io/distance"], attributes["hami.io/linkGroup"]
    if number < len(zones) and zones[number]:
        attributes["hami.io/linkGroup"] = {"int": zones[number]}


def cards(name, count, *annotations, on=None, **more):
    return wanting(name, {GPU: count}, *annotations, on=on, **more)


def parts(name, count=1, *annotations, cores=None, memory=None, on=None, **more):
    limits = {SGPU: count} | ({} if cores is None else {CORES: cores}) | ({} if memory is None else {MEMORY: memory})
    return wanting(name, limits, *annotations, on=on, **more)


def wanting(name, limits, *annotations, on=None, **more):
    if on is not None:
        more["nodeSelector"] = {"name": on}
    return pod(name, limits=limits, annotations={k: v for each in annotations for k, v in each.items()}, **more)


def holding(where, *numbers):
    """A pod that has these whole cards of a node."""
    names = ",".join(f"{where}-metax-{number}" for number in numbers)
    return cards(f"holds-{where}-{'-'.join(map(str, numbers))}", len(numbers), {USE: names}, on=where)


def placed(report):
    """Pod → (node, numbers of its cards), without those that only hold."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            [
                int(result["device"].removeprefix("gpu-"))
                for each in entry["claims"]
                for result in each["allocation"]["devices"]["results"]
            ],
        )
        for entry in report.placements
        if not entry["pod"].startswith("default/holds-")
    }


def reasons(report):
    return {entry["pod"].removeprefix("default/"): entry["reasons"] for entry in report.unplaced}


def configs(report, name):
    """Parameters that the allocations of a pod carry: (requests, parameters)."""
    (entry,) = [entry for entry in report.placements if entry["pod"] == f"default/{name}"]
    return [
        (config.get("requests", []), config["opaque"]["parameters"])
        for each in entry["claims"]
        for config in each["allocation"]["devices"].get("config", [])
    ]


def default(**annotations):
    return Policies(
        annotations={f"metax-tech.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
    )


# --- sets of cards on a node -----------------------------------------------------------------------------------------

FORMS = {
    "whole": lambda count: cards("p", count),
    "exclusive": lambda count: parts("p", count),
    "exclusive, some memory": lambda count: parts("p", count, memory=8),
    "shared": lambda count: parts("p", count, cores=60, memory=4),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_smallest_zone_that_holds_all_then_zones_from_small_to_large(form):
    """Zone 1 has cards 2 and 3 left, zone 2 has 5, 6 and 7."""
    objects = [*cluster("n"), holding("n", 0, 1, 4)]
    found = {count: placed(simulated(objects, FORMS[form](count)))["p"][1] for count in (2, 3, 4, 5)}
    assert found == {2: [2, 3], 3: [5, 6, 7], 4: [2, 3, 5, 6], 5: [2, 3, 5, 6, 7]}


@pytest.mark.parametrize("form", FORMS)
def test_cards_in_no_zone_come_last(form):
    objects = cluster(n=(0, 0, 5, 5, 0, 3, 3, 3))
    found = {count: placed(simulated(objects, FORMS[form](count)))["p"][1] for count in (2, 3, 5, 6, 8)}
    assert found == {2: [2, 3], 3: [5, 6, 7], 5: [2, 3, 5, 6, 7], 6: [0, 2, 3, 5, 6, 7], 8: list(range(8))}


@pytest.mark.parametrize("form", ["whole", "exclusive", "exclusive, some memory"])
def test_one_card_comes_from_the_smallest_zone(form):
    assert placed(simulated([*cluster("n"), holding("n", 4, 5, 6)], FORMS[form](1)))["p"] == ("n", [7])


def test_one_part_goes_by_the_device_policy():
    objects = [*cluster("n"), holding("n", 4, 5, 6), parts("first", cores=10, memory=4)]
    report = simulated(objects, parts("packed", 1, PACKED, cores=10, memory=4), parts("spread", cores=10, memory=4))
    assert placed(report) == {"first": ("n", [0]), "packed": ("n", [0]), "spread": ("n", [1])}


def test_zones_of_one_size_by_their_numbers():
    assert placed(simulated(cluster(n=(2, 2, 1, 1)), cards("p", 2)))["p"] == ("n", [2, 3])


def test_inside_a_zone_the_device_policy_chooses():
    """Cards 1 and 3 of zone 1 are in use already; parts of two cards are packed on them, or spread over the others."""
    objects = [
        *cluster("n"),
        *(parts(f"f{number}", 1, {USE: f"n-metax-{number}"}, cores=10, memory=4) for number in (1, 3)),
    ]
    packed, spread = parts("packed", 2, PACKED, cores=10, memory=4), parts("spread", 2, cores=10, memory=4)
    assert placed(simulated(objects, packed))["packed"] == ("n", [1, 3])
    assert placed(simulated(objects, spread))["spread"] == ("n", [0, 2])


def test_pairs_on_a_switch_where_there_are_no_zones():
    """The machine's slices without links: what is left are pairs of cards behind one switch."""
    raws = cluster("n")
    for raw in raws:
        for device in raw.get("spec", {}).get("devices", []):
            del device["attributes"]["hami.io/links"], device["attributes"]["hami.io/linkGroup"]
    assert placed(simulated([*raws, holding("n", 0, 3, 6)], cards("p", 2)))["p"] == ("n", [4, 5])


def test_a_constraint_that_the_best_set_breaks_finds_another():
    """NUMA node 1 is asked for, and zone 1 would be first."""
    request = {
        "name": "two",
        "exactly": {
            "deviceClassName": "metax-gpu.hami.io",
            "count": 2,
            "selectors": [
                {"cel": {"expression": 'device.attributes["resource.kubernetes.io"].numaNode == 1'}},
            ],
        },
    }
    report = simulated(cluster("n"), claim("c", request), pod("p", "c"))
    assert placed(report)["p"] == ("n", [4, 5])


def test_two_containers_of_one_pod_share_a_zone():
    both = cards("p", 2)
    both["spec"]["containers"].append({"name": "other", "resources": {"limits": {GPU: 2}}})
    assert placed(simulated([*cluster("n"), holding("n", 0)], both))["p"] == ("n", [1, 2, 4, 5])
    assert placed(simulated(cluster("n"), both))["p"] == ("n", [0, 1, 2, 3])


# --- nodes: policy and topology ------------------------------------------------------------------------------------------
#
# "a" has two cards left, of two zones: nothing is lost there, and nothing joins them.
# "b" is idle but for one card in each zone: two cards of one zone, which cost the third one its partners.
# Of the parts of cards that others took, nothing is lost either: those are shared anyhow.

CROSS = [holding("a", 0, 1, 2, 4, 5, 6)]
LINKED = [holding("b", 0, 4)]
TABLE = [
    # request, node policy, node, first key, the sentence it follows
    ("whole", BINPACK, "a", "least loss", "binpack: as little damage to the MetaXLink topology as possible"),
    ("whole", SPREAD, "b", "best topology", "spread: as far as possible under one MetaXLink or PCIe switch"),
    ("exclusive", BINPACK, "b", "Final", "Final Score = (10 * allocatedScore) - lossScore; binpack adds topology"),
    ("exclusive", SPREAD, "b", "Final", "Final Score; spread: under one MetaXLink or PCIe switch"),
    ("shared", BINPACK, "b", "allocated", "several cards get the combination with the highest bandwidth"),
    ("shared", SPREAD, "b", "allocated", "several cards get the combination with the highest bandwidth"),
]


@pytest.mark.parametrize(
    ("form", "policy", "where", "first_key", "sentence"),
    TABLE,
    ids=[f"{form}-{policy['hami.io/node-scheduler-policy']}" for form, policy, *_ in TABLE],
)
def test_node_policy_and_topology(form, policy, where, first_key, sentence):
    wanted = FORMS[form](2)
    wanted["metadata"]["annotations"].update(policy)
    assert placed(simulated([*cluster("a", "b"), *CROSS, *LINKED], wanted))["p"][0] == where, (first_key, sentence)


@pytest.mark.parametrize(("form", "policy"), [(form, policy) for form, policy, *_ in TABLE])
def test_where_the_first_key_is_equal_the_node_policy_decides(form, policy):
    """Both nodes have a zone of four left; on "a" the other is taken."""
    wanted = FORMS[form](4)
    wanted["metadata"]["annotations"].update(policy)
    report = simulated([*cluster("a", "b"), holding("b", 0, 1, 2, 3)], wanted)
    assert placed(report)["p"] == (("a", [0, 1, 2, 3]) if policy is SPREAD else ("b", [4, 5, 6, 7]))


@pytest.mark.parametrize("form", ["whole", "exclusive", "shared"])
def test_spread_takes_topology_for_a_penalty_where_a_setting_says_so(form):
    """Idle "b" has the poorer topology: no zones at all. Busy "a" has one of four."""
    objects = [*cluster("a", b=(0,) * 8), holding("a", 0, 1, 2, 3)]
    wanted = FORMS[form](4)
    wanted["metadata"]["annotations"].update(SPREAD)
    assert placed(simulated(objects, wanted))["p"][0] == "a"
    assert placed(simulated(objects, wanted, policies=default(spread_topology="prefer")))["p"][0] == "a"
    assert placed(simulated(objects, wanted, policies=default(spread_topology="penalty")))["p"][0] == "b"


@pytest.mark.parametrize("form", ["whole", "exclusive", "shared"])
def test_under_the_penalty_the_idler_node_wins_whatever_its_topology_and_of_equals_the_worse(form):
    wanted = FORMS[form](4)
    wanted["metadata"]["annotations"].update(SPREAD)
    idle_and_linked = [*cluster("b", a=(0,) * 8), holding("a", 0)]
    equally_idle = cluster("a", b=(0,) * 8)
    settings = default(spread_topology="penalty")
    assert placed(simulated(idle_and_linked, wanted, policies=settings))["p"][0] == "b"
    assert placed(simulated(equally_idle, wanted, policies=settings))["p"][0] == "b"
    assert placed(simulated(equally_idle, wanted))["p"][0] == "a"
    wanted["metadata"]["annotations"].update(BINPACK)
    assert placed(simulated(equally_idle, wanted, policies=settings))["p"][0] == "a"


def test_an_annotation_comes_before_the_setting():
    objects = [*cluster("a", b=(0,) * 8), holding("a", 0, 1, 2, 3)]
    wanted = cards("p", 4, SPREAD, PENALTY)
    assert placed(simulated(objects, wanted, policies=default(spread_topology="prefer")))["p"][0] == "b"


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
def test_exclusive_sgpus_without_topology_go_by_the_node_policy(policy):
    """ "a" is the fuller one and has no pair left; "b" has pairs."""
    objects = [*cluster("a", "b"), *CROSS, *LINKED]
    off = {"metax-tech.com/sgpu-topology-aware": "false"}
    assert placed(simulated(objects, parts("p", 2, policy, off)))["p"][0] == ("a" if policy is BINPACK else "b")
    assert placed(simulated(objects, cards("p", 2, SPREAD, off)))["p"][0] == "b"  # whole cards are no sGPUs


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
def test_one_exclusive_sgpu_takes_what_nobody_misses(policy):
    """Final of the last card of a zone is 0, of one of four -30."""
    objects = [*cluster("a", "b"), holding("b", 0, 1, 2)]
    assert placed(simulated(objects, parts("p", 1, policy)))["p"] == ("b", [3])


# --- QoS -----------------------------------------------------------------------------------------------------------------


def tenants(*said, cores=20):
    """One pod after the other on the only card: (name, annotations)."""
    return [parts(name, 1, annotations, cores=cores, memory=4) for name, annotations in said]


def test_a_card_takes_the_qos_of_its_first_tenant():
    report = simulated(
        cluster(n=(1,)),
        tenants(
            ("first", {QOS: "fixed-share"}),
            ("same", {QOS: "fixed-share"}),
            ("other", {QOS: "burst-share"}),
            ("default", {}),
        ),
    )
    assert list(placed(report)) == ["first", "same"]
    assert reasons(report) == {"other": {"CardQosPolicyMismatch": 1}, "default": {"CardQosPolicyMismatch": 1}}


def test_best_effort_is_the_default_and_is_written_down():
    report = simulated(cluster(n=(1,)), tenants(("first", {}), ("same", {QOS: "best-effort"}), ("other", {QOS: "burst-share"})))  # fmt: skip
    assert list(placed(report)) == ["first", "same"]
    said = {"apiVersion": API_VERSION, "kind": "DeviceConfig", "qos": "best-effort"}
    assert configs(report, "first") == configs(report, "same") == [([], said)]


def test_tenants_of_another_qos_get_another_card():
    report = simulated(
        cluster(n=(1, 1)),
        tenants(
            ("a", PACKED), ("b", {QOS: "burst-share"} | PACKED), ("c", PACKED), ("d", {QOS: "burst-share"} | PACKED)
        ),
    )
    assert {name: numbers for name, (_, numbers) in placed(report).items()} == {"a": [0], "b": [1], "c": [0], "d": [1]}


def test_an_exclusive_tenant_needs_an_idle_card_and_has_no_qos():
    exclusive = parts("all", 1, {QOS: "burst-share"}, memory=4)
    report = simulated(cluster(n=(1,)), tenants(("first", {QOS: "fixed-share"})), exclusive)
    assert reasons(report) == {"all": {"CardInsufficientCore": 1}}
    report = simulated(cluster(n=(1,)), tenants(("first", {QOS: "fixed-share"}), cores=0), exclusive)
    assert reasons(report) == {"all": {"ExclusiveDeviceAllocateConflict": 1}}
    report = simulated(cluster(n=(1,)), exclusive, tenants(("none", {QOS: "fixed-share"}), cores=0))
    assert reasons(report) == {"none": {"CardComputeUnitsExhausted": 1}}  # by cores, not by QoS


def test_qos_is_the_reason_before_amounts():
    greedy = parts("p", 1, {QOS: "burst-share"}, cores=90, memory=63)
    report = simulated(cluster(n=(1,)), tenants(("first", {QOS: "fixed-share"})), greedy)
    assert reasons(report) == {"p": {"CardQosPolicyMismatch": 1}}


def test_who_goes_takes_the_qos_along():
    """State is in the allocations alone: the same cluster without the first tenant's claim is open."""
    held = simulated(cluster(n=(1,)), tenants(("first", {QOS: "fixed-share"})))
    (entry,) = held.placements
    (allocated,) = entry["claims"]
    request = {"name": "gpu", "exactly": {"deviceClassName": "metax-sgpu.hami.io"}}
    observed = claim("kept", request)
    observed["status"] = {"allocation": allocated["allocation"], "reservedFor": []}
    wanted = tenants(("other", {QOS: "burst-share"}))
    assert reasons(simulated(cluster(n=(1,)), observed, wanted)) == {"other": {"CardQosPolicyMismatch": 1}}
    assert list(placed(simulated(cluster(n=(1,)), wanted))) == ["other"]


def test_containers_of_one_pod_share_a_card():
    both = parts("p", 1, {QOS: "fixed-share"} | PACKED, cores=20, memory=4)
    both["spec"]["containers"].append({"name": "other", "resources": {"limits": {SGPU: 1, CORES: 30, MEMORY: 4}}})
    assert placed(simulated(cluster("n"), both))["p"] == ("n", [0, 0])


def asked(name="gpu", class_name="metax-sgpu.hami.io", cores="20", memory="4Gi", count=1):
    capacity = {"requests": {"cores": cores, "memory": memory}}
    return {"name": name, "exactly": {"deviceClassName": class_name, "count": count, "capacity": capacity}}


def configured(raw, qos, *requests):
    parameters = {"apiVersion": API_VERSION, "kind": "DeviceConfig", "qos": qos}
    entry = {"opaque": {"driver": "metax.hami.io", "parameters": parameters}}
    if requests:
        entry["requests"] = list(requests)
    spec = raw["spec"]["devices"] if raw["kind"] == "ResourceClaim" else raw["spec"]
    spec.setdefault("config", []).append(entry)
    return raw


def own_class(qos=None, **annotations):
    selectors = [{"cel": {"expression": 'device.driver == "metax.hami.io"'}}]
    raw = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "own"}}
    raw |= {"spec": {"selectors": selectors}}
    raw["metadata"]["annotations"] = annotations.get("annotations", {})
    return configured(raw, qos) if qos else raw


FIXED = tenants(("first", {QOS: "fixed-share"}))


@pytest.mark.parametrize(
    ("raws", "annotations", "fits"),
    [
        ([claim("c", asked())], {}, False),
        ([claim("c", asked())], {QOS: "fixed-share"}, True),
        ([configured(claim("c", asked()), "fixed-share")], {}, True),
        ([configured(claim("c", asked()), "fixed-share", "gpu")], {}, True),
        ([configured(claim("c", asked()), "fixed-share")], {QOS: "burst-share"}, False),
        ([configured(claim("c", asked()), "burst-share")], {QOS: "fixed-share"}, True),
        ([own_class("fixed-share"), claim("c", asked(class_name="own"))], {}, True),
        ([own_class("fixed-share"), configured(claim("c", asked(class_name="own")), "burst-share")], {}, False),
        ([own_class("burst-share"), configured(claim("c", asked(class_name="own")), "fixed-share")], {}, True),
        ([own_class(annotations={QOS: "fixed-share"}), claim("c", asked(class_name="own"))], {}, True),
        ([claim("c", asked(), annotations={QOS: "fixed-share"})], {}, True),
    ],
)
def test_where_qos_may_be_said(raws, annotations, fits):
    """Annotations of pod, claim, template, class; else parameters of the claim, then of the class; else best-effort."""
    report = simulated(cluster(n=(1,)), FIXED, raws, pod("p", "c", annotations=annotations))
    assert ("p" in placed(report)) is fits
    assert reasons(report) == ({} if fits else {"p": {"CardQosPolicyMismatch": 1}})
    if fits:
        assert configs(report, "p")[-1][1]["qos"] == "fixed-share"


def test_parameters_come_before_the_setting():
    raws = [configured(claim("c", asked()), "fixed-share"), pod("p", "c")]
    settings = default(sgpu_qos_policy="burst-share")
    assert "p" in placed(simulated(cluster(n=(1,)), FIXED, raws, policies=settings))
    report = simulated(cluster(n=(1,)), FIXED, claim("c", asked()), pod("p", "c"), policies=settings)
    assert reasons(report) == {"p": {"CardQosPolicyMismatch": 1}}


def test_requests_of_one_claim_may_differ():
    raw = claim("c", asked("steady"), asked("bursty"), asked("whatever"))
    configured(configured(raw, "fixed-share", "steady"), "burst-share", "bursty")
    packed = pod("p", "c", annotations=PACKED)
    report = simulated(cluster("n"), raw, packed)
    assert placed(report)["p"] == ("n", [0, 1, 2])
    promised = [(requests, said["qos"]) for requests, said in configs(report, "p")][2:]
    assert promised == [(["steady"], "fixed-share"), (["bursty"], "burst-share"), (["whatever"], "best-effort")]
    later = [
        parts(name, 1, {QOS: qos} | PACKED, cores=20, memory=4)
        for name, qos in (("b", "burst-share"), ("f", "fixed-share"))
    ]
    found = placed(simulated(cluster("n"), raw, packed, later))
    assert (found["b"], found["f"]) == (("n", [1]), ("n", [0]))


def test_an_alternative_of_a_prioritized_list_has_parameters_of_its_own():
    first = {"name": "steady", **asked()["exactly"]}
    second = {"name": "any", **asked()["exactly"]}
    raw = claim("c", {"name": "gpu", "firstAvailable": [first, second]})
    configured(configured(raw, "burst-share", "gpu/steady"), "fixed-share", "gpu/any")
    report = simulated(cluster(n=(1,)), FIXED, raw, pod("p", "c"))
    (entry,) = [entry for entry in report.placements if entry["pod"] == "default/p"]
    (result,) = entry["claims"][0]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/any"


def test_a_qos_that_is_none_is_an_error_that_names_it():
    report = simulated(cluster("n"), claim("c", asked()), pod("p", "c", annotations={QOS: "gold"}))
    (entry,) = report.unplaced
    words = "must be set one of [best-effort, fixed-share, burst-share]"
    assert words in entry["message"] + entry["error"]
    assert "Pod default/p: annotation metax-tech.com/sgpu-qos-policy" in entry["message"] + entry["error"]
    report = simulated(cluster("n"), configured(claim("c", asked()), "gold"), pod("p", "c"))
    (entry,) = report.unplaced
    assert "ResourceClaim default/c: spec.devices.config[0].opaque.parameters: qos" in entry["error"]
    with pytest.raises(ConversionRefused, match="must be set one of"):
        convert_pod(parts("p", 1, {QOS: "gold"}), "team")


# --- lists -----------------------------------------------------------------------------------------------------------------


def test_lists_match_hardware_uuids_and_hamis_names():
    raws = cluster("n")
    (first, *_), *_ = (raw["spec"]["devices"] for raw in raws if raw["kind"] == "ResourceSlice")
    uuid = first["attributes"]["hami.io/uuid"]["string"]
    assert placed(simulated(raws, cards("p", 2, {USE: f"{uuid}, n-metax-6"})))["p"] == ("n", [0, 6])
    avoided = ",".join([uuid, *(f"n-metax-{number}" for number in (1, 2, 4, 5, 6))])
    assert placed(simulated(raws, parts("p", 2, {NOUSE: avoided}, cores=10)))["p"] == ("n", [3, 7])
    report = simulated(raws, parts("p", 1, {USE: "n-metax-9"}))
    assert reasons(report) == {"p": {"CardUuidMismatch": 8}}


# --- forms -----------------------------------------------------------------------------------------------------------------


def converted(limits, **options):
    conversion = convert_pod(pod("web", limits=limits), "team", Options(**options))
    if not conversion.templates:
        return conversion
    (made,) = conversion.templates
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    exactly = request["exactly"]
    return request["name"], exactly["deviceClassName"], exactly["count"], exactly.get("capacity", {}).get("requests")


@pytest.mark.parametrize(
    ("limits", "class_name", "count", "amounts"),
    [
        ({GPU: 4}, "metax-gpu.hami.io", 4, None),
        ({SGPU: 1}, "metax-sgpu.hami.io", 1, {"cores": "100"}),
        ({SGPU: 2, CORES: 100}, "metax-sgpu.hami.io", 2, {"cores": "100"}),
        ({SGPU: 1, CORES: 60, MEMORY: 4}, "metax-sgpu.hami.io", 1, {"cores": "60", "memory": "4Gi"}),
        ({SGPU: 1, CORES: "60", MEMORY: "4"}, "metax-sgpu.hami.io", 1, {"cores": "60", "memory": "4Gi"}),
        ({SGPU: 1, CORES: 0, MEMORY: 0}, "metax-sgpu.hami.io", 1, {"cores": "0"}),
        ({SGPU: 1, MEMORY: "1024Mi"}, "metax-sgpu.hami.io", 1, {"cores": "100", "memory": "1Gi"}),
        ({SGPU: 1, MEMORY: "16Gi"}, "metax-sgpu.hami.io", 1, {"cores": "100", "memory": "16Gi"}),
        ({SGPU: 1, MEMORY: "500M"}, "metax-sgpu.hami.io", 1, {"cores": "100", "memory": "500000000"}),
        ({SGPU: 1, MEMORY: "0.5Gi"}, "metax-sgpu.hami.io", 1, {"cores": "100", "memory": "512Mi"}),
    ],
)
def test_legacy_names(limits, class_name, count, amounts):
    assert converted(limits) == ("metax-0", class_name, count, amounts)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({SGPU: 1, CORES: 101}, 'resources.limits["metax-tech.com/vcore"] is 101'),
        ({SGPU: 1, CORES: -1}, "write a whole number from 0 to 100"),
        ({SGPU: 1, MEMORY: "1.5"}, "write a whole number of GiB from 0 to 4096"),
        ({SGPU: 1, MEMORY: "lots"}, "or a quantity of at least 1Mi such as 512Mi"),
        ({SGPU: 1, MEMORY: "1k"}, "is '1k', but it is the memory of each card"),
        ({SGPU: 1, MEMORY: 5000}, "write a whole number of GiB from 0 to 4096"),
        ({SGPU: 1, MEMORY: -4}, "write a whole number of GiB"),
        ({CORES: 60}, "stands without metax-tech.com/sgpu"),
        ({GPU: 1, MEMORY: 4}, "stands without metax-tech.com/sgpu"),
        ({GPU: 1, SGPU: 1}, "are both given; ask for whole cards or for sGPUs"),
        ({GPU: "half"}, "write a whole number from 0 to 32"),
    ],
)
def test_what_cannot_be_converted_says_why(limits, words):
    with pytest.raises(ConversionRefused) as refused:
        converted(limits)
    assert words in str(refused.value)


def test_none_at_all_and_native_mode():
    assert converted({GPU: 0}).templates == []
    assert converted({SGPU: 0, CORES: 10}).templates == []
    assert converted({GPU: 2}, mode="native").left == (GPU,)
    assert converted({SGPU: 1}, mode="native")[1] == "metax-sgpu.hami.io"


@pytest.mark.parametrize("count", [2, 4])
def test_claims_and_classes_of_ones_own_get_the_same_cards(count):
    """A plain claim of a class of one's own, by template: zones are minded, however it was asked for."""
    objects = [*cluster("n"), own_class(), holding("n", 0, 1, 4)]
    request = {"name": "gpus", "exactly": {"deviceClassName": "own", "count": count}}
    by_claim = placed(simulated(objects, template("t", request), pod("p", "template:t")))["p"]
    assert by_claim == placed(simulated(objects, cards("p", count)))["p"]


def test_amounts_on_the_card():
    report = simulated(cluster("n"), parts("p", 1, cores=60, memory=4), parts("q"), cards("r", 1))
    consumed = {
        entry["pod"]: [
            result["consumedCapacity"]
            for each in entry["claims"]
            for result in each["allocation"]["devices"]["results"]
        ]
        for entry in report.placements
    }
    everything = {"cores": "100", "memory": "64Gi", "shares": "1"}
    assert consumed == {
        "default/p": [{"cores": "60", "memory": "4Gi", "shares": "1"}],
        "default/q": [everything],
        "default/r": [everything],
    }


# --- online and offline tasks (HAMi HEAD, D/metax/sdevice.go) ---------------------------------------------------------

ONLINE, OFFLINE = ({"metax-tech.com/sgpu-app-class": each} for each in ("online", "offline"))


def on_card(name, number, *annotations, **more):
    return parts(name, 1, {USE: f"n-metax-{number}"}, *annotations, **{"cores": 60, "memory": 4, **more})


def test_an_online_task_takes_memory_and_no_cores_whatever_it_names():
    for cores in (None, 60, 100):
        report = simulated(cluster(n=(1,)), parts("p", 1, ONLINE, cores=cores, memory=4))
        (result,) = report.placements[0]["claims"][0]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"]["cores"] == "0"
        assert result["consumedCapacity"]["memory"] == "4Gi"


def test_tasks_of_one_class_share_a_card_and_offline_ones_keep_off_online_ones():
    """checkAppClass: online joins offline, never the other way round; ordinary tasks keep to themselves."""
    allowed = {("online", "online"), ("online", "offline"), ("offline", "offline"), ("", "")}
    classes = {"online": ONLINE, "offline": OFFLINE, "": {}}
    for second, wanted in classes.items():
        for first, running in classes.items():
            tenants = on_card("first", 0, running, cores=20)
            report = simulated(cluster(n=(1,)), tenants, on_card("second", 0, wanted, cores=20))
            if (second, first) in allowed:
                assert {entry["pod"] for entry in report.placements} == {"default/first", "default/second"}
            else:
                assert report.unplaced[0]["reasons"]["CardAppClassMismatch"] == 1
    both = [on_card("one", 0, OFFLINE, cores=20), on_card("two", 0, ONLINE)]
    report = simulated(cluster(n=(1,)), both, on_card("three", 0, OFFLINE, cores=20), on_card("four", 0, ONLINE))
    assert [entry["pod"] for entry in report.unplaced] == ["default/three"]


def test_an_online_task_goes_where_fewest_online_tasks_are_and_last_to_offline_ones():
    """prioritizeOnlineDevices. One card with two online tasks, one with one, one with an offline task, one idle."""
    raws = cluster(n=(1, 1, 1, 1))
    running = [on_card("a", 0, ONLINE), on_card("b", 0, ONLINE), on_card("c", 1, ONLINE), on_card("d", 2, OFFLINE)]
    report = simulated(raws, running, [parts(f"p{number}", 1, ONLINE, memory=4) for number in range(4)])
    found = placed(report)
    assert [found[f"p{number}"][1] for number in range(4)] == [[3], [1], [3], [0]]
    other = [*cluster(n=(1,), m=(1,)), on_card("x", 0, OFFLINE)]
    assert placed(simulated(other, parts("p", 1, ONLINE, memory=4)))["p"][0] == "m"


def test_offline_tasks_keep_the_quality_of_service_and_the_cores_of_their_card():
    fixed, burst = ({QOS: each} for each in ("fixed-share", "burst-share"))
    report = simulated(cluster(n=(1,)), on_card("a", 0, OFFLINE, fixed), on_card("b", 0, OFFLINE, burst, cores=10))
    assert report.unplaced[0]["reasons"] == {"CardQosPolicyMismatch": 1}
    report = simulated(cluster(n=(1,)), on_card("a", 0, OFFLINE), on_card("b", 0, OFFLINE, cores=50))
    assert report.unplaced[0]["reasons"] == {"CardInsufficientCore": 1}


@pytest.mark.parametrize(
    ("count", "annotations", "words"),
    [
        (1, {"metax-tech.com/sgpu-app-class": "batch"}, r"must be set one of \[online, offline\]"),
        (2, ONLINE, "app-class pod must request single device"),
        (2, OFFLINE, "app-class pod must request single device"),
        (1, OFFLINE | {QOS: "best"}, "must be set one of .best-effort"),
    ],
)
def test_classes_are_checked_as_by_the_webhook_of_hami(count, annotations, words):
    with pytest.raises(ConversionRefused, match=words):
        convert_pod(parts("p", count, annotations, memory=4), "default")
    assert convert_pod(parts("p", 1, ONLINE | {QOS: "best"}, memory=4), "default").request is not None
