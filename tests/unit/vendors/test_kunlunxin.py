"""Kunlunxin on whole nodes through simulate, and its legacy names: wings, slices, handles, lists, which node, which cards."""

import itertools

import numpy as np
import pytest

from controller.webhook.convert import ConversionRefused, convert_pod
from hami_dra.driver.simulated import machine
from hami_dra.vendors.device_codes import CODES
from hami_dra.vendors.kunlunxin.rules import Kunlunxin
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import CardRequest, Cards
from tests.support.manifests import claim, device_class, node, pod, simulated, slices

XPU, VXPU, MEMORY = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
QUARTER, HALF = 24_576, 49_152
MACHINE = "p800-oam-8"
CLASSES = [device_class(f"kunlunxin-{kind}.hami.io", "kunlunxin.hami.io") for kind in ("xpu", "vxpu")]
NODE_POLICY, DEVICE_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
USE, NOUSE = "hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"


def machines(*names, without=()):
    raws = []
    for name in names or ("n",):
        published = slices(name, MACHINE)
        for each in published:
            each["spec"]["devices"] = [
                device for device in each["spec"]["devices"] if int(device["name"].removeprefix("xpu-")) not in without
            ]
        raws += [node(name, labels={"kubernetes.io/hostname": name}), *published]
    return raws


def whole(name, count, *, on="", **annotations):
    return pinned(pod(name, limits={XPU: count}, annotations=annotations), on)


def parts(name, count, memory=QUARTER, *, on="", **annotations):
    limits = {VXPU: count} if memory is None else {VXPU: count, MEMORY: memory}
    return pinned(pod(name, limits=limits, annotations=annotations), on)


def pinned(raw, name):
    if name:
        raw["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
    return raw


def containers(name, *limits, **annotations):
    raw = pod(name, annotations=annotations)
    raw["spec"]["containers"] = [
        {"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(limits)
    ]
    return raw


def busy(name, cards, memory="96Gi", cores="100", on="n"):
    """An allocated claim on these cards, as if an earlier pod had it."""
    raw = claim(name, {"name": "xpu", "exactly": {"deviceClassName": CLASSES[0]["metadata"]["name"]}})
    results = [
        {
            "request": "xpu",
            "driver": "kunlunxin.hami.io",
            "pool": on,
            "device": f"xpu-{card}",
            "shareID": f"00000000-0000-4000-8000-{number:012}",
            "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
        }
        for number, card in enumerate(cards)
    ]
    return raw | {"status": {"allocation": {"devices": {"results": results}}}} if cards else []


def cards(report):
    """Pod → (node, card numbers)."""
    found = {}
    for entry in report.placements:
        numbers = [
            int(result["device"].removeprefix("xpu-"))
            for each in entry["claims"]
            for result in each["allocation"]["devices"]["results"]
        ]
        found[entry["pod"].removeprefix("default/")] = entry["node"], numbers
    return found


def reasons(report):
    return {entry["pod"].removeprefix("default/"): entry["reasons"] for entry in report.unplaced}


# --- whole cards ----------------------------------------------------------------------------------------------------------


def test_two_on_an_idle_node_are_cards_0_and_1():
    """The seed's walk through: the left wing first, from its beginning."""
    for asked in (whole("p", 2), parts("p", 2, memory=None)):
        assert cards(simulated(CLASSES, machines(), asked)) == {"p": ("n", [0, 1])}


@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [
        ((0, 1, 2), 1, [3]),  # a wing with one left
        ((0, 4, 5), 1, [1]),  # then one with three
        ((4,), 1, [5]),
        ((0, 1, 4, 5), 1, [2]),  # then two, left before right
        ((), 1, [0]),
        ((0, 1), 2, [2, 3]),  # two, three, four
        ((4,), 2, [5, 6]),
        ((0, 1, 2, 5, 6, 7), 2, None),  # 3 and 4 are no pair
        ((0, 1, 2, 4, 5, 6), 2, [3, 7]),
        ((0,), 3, [1, 2, 3]),
        ((0, 1, 4, 5), 3, None),
        ((0,), 4, [4, 5, 6, 7]),
        ((2, 3, 6, 7), 4, [0, 1, 4, 5]),
        ((0, 4), 4, [2, 3, 6, 7]),  # leaves the pair 1-5
        ((0, 5), 4, [2, 3, 6, 7]),  # no quad leaves a pair, so the last
        ((5, 6, 7), 5, [0, 1, 2, 3, 4]),
        ((0,), 5, [1, 4, 5, 6, 7]),
        ((0, 1), 6, [2, 3, 4, 5, 6, 7]),
        ((7,), 7, [0, 1, 2, 3, 4, 5, 6]),
        ((3, 7), 5, None),
        ((), 8, list(range(8))),
    ],
)
def test_the_choice_among_wings(taken, count, expected):
    report = simulated(CLASSES, machines(), busy("held", taken), whole("p", count))
    if expected is None:
        assert reasons(report) == {"p": {"NumaNotFit": 1}}
    else:
        assert cards(report) == {"p": ("n", expected)}


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize(
    ("count", "held", "best"),
    [
        # bubble of the chosen minus bubble of those in use: -1 -> 3000, 0 -> 2000, 1 -> 1000, 2 -> 0
        (2, {"a": (), "b": (0,)}, "b"),  # a: 2 - 1 -> 1000; b: 2 - 3 -> 3000
        (4, {"a": (), "b": (0, 1)}, "b"),  # a: 1 - 1 -> 2000; b: 1 - 2 -> 3000
        (1, {"a": (), "b": (4, 5)}, "b"),  # a: 3 - 1 -> 0; b: 3 - 2 -> 1000
        (1, {"a": (0, 1), "b": (0, 4)}, "b"),  # a: 3 - 2 -> 1000; b: 3 - 4 -> 3000
    ],
)
def test_nodes_are_compared_by_the_bubbles_whatever_the_policy(policy, count, held, best):
    claims = [busy(f"held-{name}", taken, on=name) for name, taken in held.items() if taken]
    report = simulated(CLASSES, machines("a", "b"), claims, whole("p", count, **{NODE_POLICY: policy}))
    assert cards(report)["p"][0] == best


@pytest.mark.parametrize(
    ("policy", "taken", "expected"),
    [
        ("binpack", (0,), ("b", [1, 2])),  # a: 2 - 1 -> 1000; b: 2 - 3 -> 3000
        ("spread", (0,), ("b", [1, 2])),
        ("binpack", (0, 4), ("b", [1, 2])),  # both 1000, though one card alone would be 0 on a and 3000 on b
        ("spread", (0, 4), ("a", [0, 1])),
    ],
)
def test_containers_of_one_pod_count_together_for_the_node(policy, taken, expected):
    """One card each, and the score is that of both; where it is the same the node policy decides."""
    report = simulated(
        CLASSES,
        machines("a", "b"),
        busy("held", taken, on="b"),
        containers("p", {XPU: 1}, {XPU: 1}, **{NODE_POLICY: policy}),
    )
    assert cards(report) == {"p": expected}


def test_all_busy_patterns_on_real_nodes():
    """256 nodes, one for each pattern, through the whole of decide; tests/property has all counts, without nodes."""
    patterns = [taken for size in range(9) for taken in itertools.combinations(range(8), size)]
    names = [f"n{number:03}" for number in range(len(patterns))]
    held = [busy(f"held-{name}", taken, on=name) for name, taken in zip(names, patterns, strict=True) if taken]
    report = simulated(CLASSES, machines(*names), held, [whole(f"p-{name}", 2, on=name) for name in names])
    found = cards(report)
    for name, taken in zip(names, patterns, strict=True):
        free = [card for card in range(8) if card not in taken]
        left, right = [card for card in free if card < 4], [card for card in free if card >= 4]
        wings = sorted((wing for wing in (left, right) if len(wing) >= 2), key=len)
        pairs = [[card, card + 4] for card in left if card + 4 in right]
        expected = (wings[0][:2] if wings else None) or next(iter(pairs), None)
        assert found.get(f"p-{name}", (name, None)) == (name, expected), taken


def test_a_plain_claim_gets_wings_too():
    three = {"name": "three", "exactly": {"deviceClassName": "kunlunxin-xpu.hami.io", "count": 3}}
    report = simulated(CLASSES, machines(), busy("held", (0, 1)), claim("c", three), pod("p", "c"))
    assert cards(report) == {"p": ("n", [4, 5, 6])}


def test_the_search_gives_up_a_good_first_choice_for_one_that_leaves_a_pair():
    """Free are 0 to 4. Three and two fit only if the three leave card 0 to its partner 4."""
    report = simulated(CLASSES, machines(), busy("held", (5, 6, 7)), containers("p", {XPU: 3}, {XPU: 2}))
    assert cards(report) == {"p": ("n", [1, 2, 3, 0, 4])}


def test_a_constraint_may_ask_for_a_pair_across_the_wings():
    """No wing gives two cards on different NUMA nodes, so a linked pair across is next."""
    two = {"name": "two", "exactly": {"deviceClassName": "kunlunxin-xpu.hami.io", "count": 2}}
    apart = claim("c", two)
    apart["spec"]["devices"]["constraints"] = [{"distinctAttribute": "resource.kubernetes.io/numaNode"}]
    report = simulated(CLASSES, machines(), busy("held", (0,)), apart, pod("p", "c"))
    assert cards(report) == {"p": ("n", [1, 5])}


def test_a_machine_with_missing_cards_goes_by_their_numbers():
    """Cards 1 and 6 are not there: 0, 2, 3 are the left wing, 4, 5, 7 the right one."""
    present = machines(without=(1, 6))
    assert cards(simulated(CLASSES, present, whole("p", 3)))["p"][1] == [0, 2, 3]
    assert cards(simulated(CLASSES, present, whole("p", 4)))["p"][1] == [0, 3, 4, 7]
    assert cards(simulated(CLASSES, present, whole("p", 6)))["p"][1] == [0, 2, 3, 4, 5, 7]
    assert reasons(simulated(CLASSES, present, busy("held", (0, 2, 5, 7)), whole("p", 2))) == {"p": {"NumaNotFit": 1}}


# --- slices -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "memory", "expected"),
    [
        (8, QUARTER, None),  # 8 + 8 x 4 = 40
        (7, QUARTER, None),
        (6, QUARTER, [0, 1, 2, 3, 4, 5]),  # 8 + 6 x 4 = 32
        (8, HALF, list(range(8))),  # 8 + 8 x 2 = 24
        (8, None, list(range(8))),
    ],
)
def test_handles_of_a_node(count, memory, expected):
    report = simulated(CLASSES, machines(), parts("p", count, memory))
    if expected is None:
        assert reasons(report) == {"p": {"NodeHandlesExhausted": 1}}
    else:
        assert cards(report) == {"p": ("n", expected)}


def test_handles_count_over_pods_and_a_sliced_card_has_them_already():
    """Six cards in quarters, spread over as many: the seventh pod may only join one of them, a half would need a fresh one."""
    pods = [parts(f"p{number}", 1) for number in range(8)]
    report = simulated(CLASSES, machines(), pods, parts("half", 1, HALF), whole("whole", 2))
    found = {name: numbers for name, (_, numbers) in cards(report).items()}
    assert sorted(found[f"p{number}"][0] for number in range(6)) == [0, 1, 2, 3, 4, 5]
    assert {found["p6"][0], found["p7"][0]} <= set(range(6))
    assert found["whole"] == [6, 7]
    assert reasons(report) == {"half": {"AllocatedCardsInsufficientRequest": 2, "ModeNotFit": 6}} or reasons(
        report
    ) == {"half": {"NodeHandlesExhausted": 1}}


def test_a_slice_is_placed_on_the_node_that_has_handles_left():
    full = [busy(f"cut-{card}", (card,), "24Gi", "25", on="a") for card in range(6)]
    report = simulated(CLASSES, machines("a", "b"), full, parts("p", 1, HALF))
    assert cards(report)["p"][0] == "b"


def test_the_requests_of_one_pod_share_the_handles():
    """Six quarters and a half would be 8 + 24 + 2."""
    six = {VXPU: 6, MEMORY: QUARTER}
    assert reasons(simulated(CLASSES, machines(), containers("p", six, {VXPU: 1, MEMORY: HALF}))).keys() == {"p"}
    report = simulated(CLASSES, machines(), containers("p", six, {VXPU: 1, MEMORY: QUARTER}))
    assert cards(report) == {"p": ("n", [0, 1, 2, 3, 4, 5, 0])}


@pytest.mark.parametrize(("asked", "memory"), [(0, "24Gi"), (20_480, "24Gi"), (24_577, "48Gi"), (60_000, "96Gi")])
def test_memory_is_aligned_up(asked, memory):
    report = simulated(CLASSES, machines(), parts("p", 1, asked))
    ((entry,),) = [each["claims"] for each in report.placements]
    (result,) = entry["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["memory"] == memory


def test_a_claim_is_aligned_by_the_allocator():
    slice_ = {"name": "s", "exactly": {"deviceClassName": "kunlunxin-vxpu.hami.io"}}
    slice_["exactly"]["capacity"] = {"requests": {"memory": "20Gi", "cores": "25"}}
    report = simulated(CLASSES, machines(), claim("c", slice_), claim("d", slice_), pod("p", "c", "d"))
    assert cards(report) == {"p": ("n", [0, 0])}
    ((first, _),) = [each["claims"] for each in report.placements]
    assert first["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] == "24Gi"


def test_one_size_per_card():
    """A half does not join quarters, a quarter no half, and neither a whole card; each takes a card of its own."""
    chosen = {DEVICE_POLICY: "binpack"}
    report = simulated(
        CLASSES, machines(), [parts("q", 1, **chosen), parts("h", 1, HALF, **chosen), whole("w", 1, **chosen)]
    )
    assert sorted(numbers for _, numbers in cards(report).values()) == [[0], [1], [2]]
    only = {USE: "n-kunlun-0"}
    report = simulated(CLASSES, machines(), [parts("q", 1, **only), parts("h", 1, HALF, **only)])
    assert reasons(report) == {"h": {"CardUuidMismatch": 7, "ModeNotFit": 1}}


def test_four_quarters_fill_a_card_and_two_halves():
    only = {USE: "n-kunlun-5"}
    report = simulated(CLASSES, machines(), [parts(f"p{number}", 1, **only) for number in range(5)])
    assert {name for name, (_, numbers) in cards(report).items() if numbers == [5]} == {"p0", "p1", "p2", "p3"}
    report = simulated(CLASSES, machines(), [parts(f"p{number}", 1, HALF, **only) for number in range(3)])
    assert len(cards(report)) == 2


@pytest.mark.parametrize(("policy", "expected"), [("binpack", [0] * 4 + [1] * 4), ("spread", [0, 1, 2, 3, 4, 5, 0, 1])])
def test_single_slices_follow_the_device_policy(policy, expected):
    """Spread goes to idle cards as long as there are handles, the left wing first as HAMi; then to the emptiest."""
    pods = [parts(f"p{number}", 1, **{DEVICE_POLICY: policy}) for number in range(8)]
    found = cards(simulated(CLASSES, machines(), pods))
    assert [found[f"p{number}"][1][0] for number in range(8)] == expected


# --- several slices: of one request, and of one pod ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_slices_of_one_request_lie_on_different_cards(policy):
    report = simulated(CLASSES, machines(), parts("p", 4, **{DEVICE_POLICY: policy}))
    assert cards(report) == {"p": ("n", [0, 1, 2, 3])}


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_containers_of_one_pod_share_a_card_before_the_policy(policy):
    """Spread alone would take an idle card for each."""
    quarter = {VXPU: 1, MEMORY: QUARTER}
    report = simulated(
        CLASSES, machines(), containers("p", quarter, quarter, quarter, quarter, **{DEVICE_POLICY: policy})
    )
    assert cards(report) == {"p": ("n", [0, 0, 0, 0])}


def test_claims_of_one_pod_share_a_card_before_the_policy():
    half = {"name": "h", "exactly": {"deviceClassName": "kunlunxin-vxpu.hami.io"}}
    half["exactly"]["capacity"] = {"requests": {"memory": "48Gi", "cores": "50"}}
    report = simulated(CLASSES, machines(), claim("c", half), claim("d", half), pod("p", "c", "d"))
    assert cards(report) == {"p": ("n", [0, 0])}


def test_what_finds_no_room_on_the_card_takes_one_in_the_same_wing_before_binpack():
    """Cards 0 and 6 have one half left. The first takes that of 0; binpack alone would send the second to 6."""
    held = [busy(f"half-{card}", (card,), "48Gi", "50") for card in (0, 6)]
    half = {VXPU: 1, MEMORY: HALF}
    one = simulated(
        CLASSES, machines(), held, [parts(f"p{each}", 1, HALF, **{DEVICE_POLICY: "binpack"}) for each in "ab"]
    )
    assert cards(one) == {"pa": ("n", [0]), "pb": ("n", [6])}
    both = simulated(CLASSES, machines(), held, containers("p", half, half, **{DEVICE_POLICY: "binpack"}))
    assert cards(both) == {"p": ("n", [0, 1])}


def test_what_finds_no_room_on_the_card_takes_one_in_the_same_wing_before_spread():
    """Two halves fill card 0. Spread alone would send the third to the idle card 4, not to 1, which has a half left."""
    held = busy("half-1", (1,), "48Gi", "50")
    half, listed = {VXPU: 1, MEMORY: HALF}, {USE: "n-kunlun-0,n-kunlun-1,n-kunlun-4"}
    apart = simulated(CLASSES, machines(), held, [parts(f"p{each}", 1, HALF, **listed) for each in "ab"])
    assert cards(apart) == {"pa": ("n", [0]), "pb": ("n", [4])}
    together = simulated(CLASSES, machines(), held, containers("p", half, half, half, **listed))
    assert cards(together) == {"p": ("n", [0, 0, 1])}


def test_the_second_request_stays_in_the_wing_of_the_first():
    """Alone it would prefer the right wing, which has one card left."""
    report = simulated(CLASSES, machines(), busy("held", (4, 5, 6)), containers("p", {XPU: 2}, {XPU: 1}))
    assert cards(report) == {"p": ("n", [0, 1, 2])}


# --- lists ----------------------------------------------------------------------------------------------------------------------


def uuid(card):
    (published,) = slices("n", MACHINE)
    return published["spec"]["devices"][card]["attributes"]["hami.io/uuid"]["string"]


@pytest.mark.parametrize("name", [USE, "baidu.com/use-gpuuuid"])
def test_only_cards_of_the_list(name):
    for listed in (f"{uuid(1)}, {uuid(3)}", "n-kunlun-1,n-kunlun-3"):
        report = simulated(CLASSES, machines(), parts("p", 2, **{name: listed}))
        assert cards(report) == {"p": ("n", [1, 3])}


@pytest.mark.parametrize("name", [NOUSE, "baidu.com/nouse-gpuuuid"])
def test_no_card_of_the_list(name):
    report = simulated(CLASSES, machines(), whole("p", 2, **{name: f"{uuid(0)},n-kunlun-1"}))
    assert cards(report) == {"p": ("n", [2, 3])}


def test_what_the_lists_leave_must_still_be_linked():
    report = simulated(CLASSES, machines(), whole("p", 2, **{USE: "n-kunlun-0,n-kunlun-5"}))
    assert reasons(report) == {"p": {"NumaNotFit": 1}}
    report = simulated(CLASSES, machines(), whole("p", 3, **{USE: "n-kunlun-0,n-kunlun-5"}))
    assert reasons(report) == {"p": {"CardUuidMismatch": 6, "AllocatedCardsInsufficientRequest": 2}}


def test_a_class_may_choose_the_cards_and_the_policy():
    ours = device_class("own", "kunlunxin.hami.io", annotations={NOUSE: "n-kunlun-0", DEVICE_POLICY: "binpack"})
    slice_ = {"name": "s", "exactly": {"deviceClassName": "own"}}
    slice_["exactly"]["capacity"] = {"requests": {"memory": "24Gi", "cores": "25"}}
    pods = [raw for each in "ab" for raw in (claim(f"c{each}", slice_), pod(f"p{each}", f"c{each}"))]
    assert cards(simulated(ours, machines(), pods)) == {"pa": ("n", [1]), "pb": ("n", [1])}


def test_cards_of_two_vendors_in_one_pod():
    """Only b has both."""
    gpus = [each for name in ("b", "c") for each in slices(name, "g4dn.12xlarge")]
    raws = [*CLASSES, device_class("nvidia-gpu.hami.io"), *machines("a", "b"), node("c"), *gpus]
    report = simulated(raws, pod("p", limits={XPU: 2, "nvidia.com/gpu": 1}))
    ((entry,),) = [each["claims"] for each in report.placements]
    drivers = [result["driver"] for result in entry["allocation"]["devices"]["results"]]
    assert report.placements[0]["node"] == "b"
    assert sorted(drivers) == ["kunlunxin.hami.io", "kunlunxin.hami.io", "nvidia.hami.io"]


def test_unhealthy_cards_are_refused_and_keep_their_wing():
    """Card 1 is faulty: three of the left wing are left, and the wing is not full."""
    raws = machines()
    faulty = raws[1]["spec"]["devices"][1]
    faulty["taints"] = [{"key": "hami.io/unhealthy", "effect": "NoSchedule"}]
    assert cards(simulated(CLASSES, raws, whole("p", 3)))["p"][1] == [0, 2, 3]
    assert cards(simulated(CLASSES, raws, whole("p", 5)))["p"][1] == [0, 4, 5, 6, 7]
    assert reasons(simulated(CLASSES, raws, whole("p", 8))) == {
        "p": {"CardNotHealth": 1, "AllocatedCardsInsufficientRequest": 7}
    }


# --- refusals of single cards -----------------------------------------------------------------------------------------------------


GIB = 1 << 30


def refused(used, asked, *, cores_used=0, cores=25):
    """Reason of one card of 96 GiB; `used`: GiB that each holder has."""
    total = 96 * GIB

    def column(value):
        return np.array([value], dtype=np.int64)

    card = Cards(
        index=column(0),
        numa=column(0),
        slots_total=column(4),
        slots_used=column(len(used)),
        cores_total=column(100),
        cores_used=column(cores_used),
        memory_total=column(total),
        memory_used=column(sum(used) * GIB),
        mark=column(0),
    )
    ask = CardRequest(slots=column(1), cores=column(cores), memory=column(asked * GIB))
    return CODES[Kunlunxin().refuse(card, ask, Preferences())[0]]


@pytest.mark.parametrize(
    ("used", "asked", "reason"),
    [
        ((), 24, ""),
        ((), 96, ""),
        ((24,), 24, ""),
        ((24, 24, 24), 24, ""),
        ((24,), 48, "ModeNotFit"),
        ((48,), 48, ""),
        ((48,), 24, "ModeNotFit"),
        ((24, 24), 48, "ModeNotFit"),
        ((24,), 96, "ExclusiveDeviceAllocateConflict"),
        ((96,), 24, "ModeNotFit"),
        ((20, 20), 20, ""),  # a driver that does not round: what counts is the size that they are aligned to
        ((10, 10, 10, 10), 10, "CardTimeSlicingExhausted"),
        ((30, 30), 30, "CardTimeSlicingExhausted"),
    ],
)
def test_refusals(used, asked, reason):
    assert refused(used, asked) == reason


def test_cores_mean_what_they_mean_everywhere():
    assert refused((24,), 24, cores=100) == "ExclusiveDeviceAllocateConflict"
    assert refused((24,), 24, cores_used=100, cores=0) == "CardComputeUnitsExhausted"


# --- legacy names -------------------------------------------------------------------------------------------------------------------


def converted(limits, **more):
    conversion = convert_pod(pod("web", limits=limits, **more), "team")
    (template,) = conversion.templates
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    return request["exactly"], conversion.warnings


def test_whole_cards():
    exactly = {"deviceClassName": "kunlunxin-xpu.hami.io", "allocationMode": "ExactCount", "count": 4}
    assert converted({XPU: 4}) == (exactly, ())


@pytest.mark.parametrize(
    ("memory", "requests"),
    [
        (0, {"memory": "24Gi", "cores": "25"}),
        (20_480, {"memory": "24Gi", "cores": "25"}),
        (24_576, {"memory": "24Gi", "cores": "25"}),
        (24_577, {"memory": "48Gi", "cores": "50"}),
        (49_152, {"memory": "48Gi", "cores": "50"}),
        (49_153, {"memory": "96Gi", "cores": "100"}),
        (98_304, {"memory": "96Gi", "cores": "100"}),
        (None, {"cores": "100"}),
    ],
)
def test_slices(memory, requests):
    exactly, warnings = converted({VXPU: 2} if memory is None else {VXPU: 2, MEMORY: memory})
    assert exactly == {
        "deviceClassName": "kunlunxin-vxpu.hami.io",
        "allocationMode": "ExactCount",
        "count": 2,
        "capacity": {"requests": requests},
    }
    assert warnings == ()


def test_more_memory_than_a_card_has_is_a_whole_card_and_says_so():
    exactly, (warning,) = converted({VXPU: 1, MEMORY: 100_000})
    assert exactly["capacity"]["requests"] == {"memory": "96Gi", "cores": "100"}
    assert 'resources.limits["kunlunxin.com/vxpu-memory"] is 100000, more than a card has; 98304 is used' in warning


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({XPU: 1, VXPU: 1}, "are both given; ask for whole XPUs or for vXPUs"),
        ({MEMORY: 1024}, 'resources.limits["kunlunxin.com/vxpu-memory"] stands without kunlunxin.com/vxpu'),
        ({VXPU: 1, MEMORY: "20Gi"}, 'write "20480"'),
        ({VXPU: 1, MEMORY: -1}, "a whole number"),
        ({XPU: "two"}, "write a whole number from 0 to 32"),
    ],
)
def test_what_cannot_be_converted_says_why(limits, words):
    with pytest.raises(ConversionRefused) as why:
        converted(limits)
    assert words in str(why.value)


@pytest.mark.parametrize("limits", [{XPU: 0}, {VXPU: 0, MEMORY: 24_576}])
def test_none_at_all_is_no_wish(limits):
    assert convert_pod(pod("web", limits=limits), "team").templates == []


def test_an_init_container_shares_the_larger_slice():
    raw = pod("web", limits={VXPU: 1, MEMORY: QUARTER})
    raw["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": {VXPU: 1, MEMORY: HALF}}}]
    (template,) = convert_pod(raw, "team").templates
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"memory": "48Gi", "cores": "50"}


@pytest.mark.parametrize("name", ["hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"])
def test_the_pci_address_of_a_card_is_a_name_of_it(name):
    """HAMi's docs/kunlun-vxpu-support.md: "Device ID format is {BusID}"."""
    cards = machine("p800-oam-8", "n").cards
    for chosen in (cards[5], cards[2]):
        own = {name: f" {chosen.pci_bus_id} , 0000:ff:00.0"}
        report = simulated(CLASSES, machines("n"), pod("p", limits={"kunlunxin.com/vxpu": 1}, annotations=own))
        (result,) = report.placements[0]["claims"][0]["allocation"]["devices"]["results"]
        assert result["device"] == f"xpu-{chosen.index}"
