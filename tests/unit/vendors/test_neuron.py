"""AWS Neuron: blocks against an oracle, cores across devices, the legacy names, whole nodes through simulate."""

import itertools

import pytest

from controller.webhook.convert import ConversionRefused, convert_pod
from hami_dra.vendors.neuron.instances import INSTANCES
from hami_dra.vendors.neuron.rules import Neuron, blocks, is_inferentia
from hami_dra.vendors.preferences import CardLists
from tests.support.manifests import claim, device_class, node, pod, simulated, slices

DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
CLASSES = [device_class(f"neuron-{kind}.hami.io", "neuron.hami.io") for kind in ("device", "core")]
INF2, TRN1, TRN2 = "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"


def machines(**nodes):
    return [each for name, machine in nodes.items() for each in (node(name), *slices(name, machine))]


def wanting(name, amount, resource=DEVICES, **more):
    return pod(name, limits={resource: amount}, **more)


def devices(report):
    """Pod → (node, device numbers)."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            [
                int(result["device"].removeprefix("neuron-"))
                for each in entry["claims"]
                for result in each["allocation"]["devices"]["results"]
            ],
        )
        for entry in report.placements
    }


def reasons(report):
    return {entry["pod"].removeprefix("default/"): entry["reasons"] for entry in report.unplaced}


# --- blocks ----------------------------------------------------------------------------------------------------------


def oracle(free, count, *, inferentia):
    """HAMi's table, spelled out: every set of that many free devices that is a legal block."""
    legal = []
    for chosen in itertools.combinations(sorted(free), count):
        consecutive = list(chosen) == list(range(chosen[0], chosen[0] + count))
        if inferentia:
            allowed = consecutive
        else:
            allowed = consecutive and (count == 1 or (count in {4, 8, 16} and chosen[0] in range(0, 16, count)))
        if allowed:
            legal.append(chosen)
    return legal


@pytest.mark.parametrize("inferentia", [True, False])
@pytest.mark.parametrize("size", [1, 4, 8, 12])
def test_blocks_of_every_busy_pattern(size, inferentia):
    for pattern in range(1 << size):
        free = [number for number in range(size) if pattern >> number & 1]
        for count in range(1, size + 1):
            found = blocks(range(size), pattern, count, aligned=not inferentia)
            as_sets = [tuple(number for number in range(size) if mask >> number & 1) for mask in found]
            assert as_sets == oracle(free, count, inferentia=inferentia)


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_sixteen_devices_of_trainium(count):
    for busy in itertools.combinations(range(16), 2):
        free = [number for number in range(16) if number not in busy]
        pattern = sum(1 << number for number in free)
        found = blocks(range(16), pattern, count, aligned=True)
        starts = [number for number in range(0, 16, count) if not set(busy) & set(range(number, number + count))]
        assert found == tuple(((1 << count) - 1) << start for start in starts)


def test_blocks_go_by_the_numbers_of_the_devices_not_by_their_places():
    """Device 2 is missing: 1 and 3 stand side by side in the list and are no neighbours; 4 to 7 is still a row."""
    index = (0, 1, 3, 4, 5, 6, 7)
    assert blocks(index, 0b1111111, 2, aligned=False) == (0b11, 0b1100, 0b11000, 0b110000, 0b1100000)
    assert blocks(index, 0b1111111, 4, aligned=True) == (0b1111000,)


def test_the_family_is_read_from_the_instance_type_then_from_the_product():
    assert [is_inferentia(each.name, ()) for each in INSTANCES] == [each.name.startswith("inf") for each in INSTANCES]
    assert is_inferentia("", ["Inferentia2"])
    assert not is_inferentia("", ["Trainium1"])
    assert not is_inferentia("trn1.32xlarge", ["Inferentia2"])


# --- whole nodes --------------------------------------------------------------------------------------------------------


def test_several_devices_of_inferentia_are_neighbours_wherever_they_begin():
    report = simulated(CLASSES, machines(n=INF2), [wanting("three", 3), wanting("two", 2), wanting("seven", 7)])
    found = devices(report)
    assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for _, numbers in found.values())
    assert {name: len(numbers) for name, (_, numbers) in found.items()} == {"three": 3, "two": 2, "seven": 7}


def test_enough_free_devices_that_are_no_neighbours_are_refused_with_that_reason():
    """Every other device is taken: six are free, no two side by side."""
    use = {"aws.amazon.com/use-neuron-uuid": ",".join(f"n-AWSNeuron-{number}" for number in range(0, 12, 2))}
    fillers = [wanting(f"f{number}", 1, annotations=use) for number in range(6)]
    report = simulated(CLASSES, machines(n=INF2), fillers, wanting("two", 2), wanting("one", 1))
    assert {numbers[0] for name, (_, numbers) in devices(report).items() if name != "one"} == set(range(0, 12, 2))
    assert devices(report)["one"][1][0] % 2 == 1
    assert reasons(report) == {"two": {"NumaNotFit": 1}}


@pytest.mark.parametrize("machine", [TRN1, TRN2])
@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 12, 15])
def test_trainium_gives_no_other_number(machine, count):
    report = simulated(CLASSES, machines(n=machine), wanting("some", count))
    assert reasons(report) == {"some": {"NumaNotFit": 1}}


@pytest.mark.parametrize("machine", [TRN1, TRN2])
def test_trainium_blocks_begin_at_multiples_of_their_size(machine):
    report = simulated(
        CLASSES, machines(n=machine), [wanting("one", 1), wanting("eight", 8), wanting("four", 4), wanting("more", 4)]
    )
    found = devices(report)
    (single,) = found["one"][1]
    half = 0 if single >= 8 else 8
    assert found["eight"][1] == list(range(half, half + 8))
    row = single // 4 * 4
    assert found["four"][1] == list(range(row ^ 4, (row ^ 4) + 4))
    assert reasons(report) == {"more": {"AllocatedCardsInsufficientRequest": 3, "CardInsufficientCore": 13}}


def test_all_sixteen():
    report = simulated(CLASSES, machines(n=TRN1), wanting("all", 16))
    assert devices(report)["all"][1] == list(range(16))


def test_a_block_is_looked_for_on_another_node():
    busy = wanting("busy", 1, annotations={"aws.amazon.com/use-neuron-uuid": "a-AWSNeuron-9"})
    report = simulated(CLASSES, machines(a=TRN1, b=TRN1), busy, wanting("all", 16))
    assert devices(report) == {"busy": ("a", [9]), "all": ("b", list(range(16)))}


def test_a_plain_claim_gets_neighbours_too():
    three = {"name": "three", "exactly": {"deviceClassName": "neuron-device.hami.io", "count": 3}}
    report = simulated(CLASSES, machines(a=TRN1, b=INF2), claim("c", three), pod("p", "c"))
    where, numbers = devices(report)["p"]
    assert (where, numbers) == ("b", list(range(numbers[0], numbers[0] + 3)))


# --- cores --------------------------------------------------------------------------------------------------------------


def cores_of(report, name):
    """(device, cores) of each result."""
    (entry,) = [entry for entry in report.placements if entry["pod"] == f"default/{name}"]
    results = [result for each in entry["claims"] for result in each["allocation"]["devices"]["results"]]
    return [(result["device"], result["consumedCapacity"]["neuroncores"]) for result in results]


def test_pods_share_a_device_by_its_cores():
    chosen = {"hami.io/gpu-scheduler-policy": "binpack"}
    pods = [wanting(f"p{number}", 1, CORES, annotations=chosen) for number in range(3)]
    report = simulated(CLASSES, machines(n=INF2), pods)
    (first,), (second,), (third,) = (cores_of(report, f"p{number}") for number in range(3))
    assert first == second
    assert third[0] != first[0]


@pytest.mark.parametrize(
    ("machine", "cores", "expected"),
    [
        (INF2, 1, ["1"]),
        (INF2, 2, ["2"]),
        (INF2, 4, ["2", "2"]),
        (INF2, 6, ["2", "2", "2"]),
        (TRN1, 2, ["2"]),
        (TRN1, 8, ["2"] * 4),
        (TRN2, 3, ["3"]),
        (TRN2, 4, ["4"]),
        (TRN2, 16, ["4"] * 4),
        (TRN2, 64, ["4"] * 16),
    ],
)
def test_cores_inside_one_device_and_across(machine, cores, expected):
    report = simulated(CLASSES, machines(n=machine), wanting("p", cores, CORES))
    assert [amount for _, amount in cores_of(report, "p")] == expected
    numbers = devices(report)["p"][1]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize(
    ("machine", "cores", "why"), [(INF2, 3, {"CardInsufficientCore": 12}), (TRN1, 4, {"NumaNotFit": 1})]
)
def test_cores_that_no_device_and_no_block_has(machine, cores, why):
    assert reasons(simulated(CLASSES, machines(n=machine), wanting("p", cores, CORES))) == {"p": why}


def test_one_device_is_better_than_several_whatever_the_scores_say():
    """Four cores: one device of trn2, two of inf2. Binpack alone would join the busy inf2 node."""
    busy = wanting("busy", 4, annotations={"aws.amazon.com/use-neuron-uuid": "a-AWSNeuron-0,a-AWSNeuron-1,a-AWSNeuron-2,a-AWSNeuron-3"})  # fmt: skip
    report = simulated(CLASSES, machines(a=INF2, b=TRN2), busy, wanting("p", 4, CORES))
    assert devices(report)["p"][0] == "b"
    assert cores_of(report, "p") == [("neuron-0", "4")] or len(cores_of(report, "p")) == 1


def test_a_device_that_gave_cores_away_is_no_whole_one():
    use = {"aws.amazon.com/use-neuron-uuid": "n-AWSNeuron-1"}
    core = wanting("core", 1, CORES, annotations=use)
    report = simulated(CLASSES, machines(n=INF2), core, wanting("whole", 1, annotations=use))
    assert reasons(report) == {"whole": {"CardInsufficientCore": 1, "CardUuidMismatch": 11}}


# --- lists and legacy names -----------------------------------------------------------------------------------------------


def test_lists_match_hardware_uuids_and_hamis_names():
    preferences = Neuron().preferences(
        {"aws.amazon.com/use-neuron-uuid": "a, b,", "aws.amazon.com/nouse-neuron-uuid": "b"}
    )
    assert preferences.lists == CardLists(frozenset("ab"), frozenset("b"))
    avoid = {"aws.amazon.com/nouse-neuron-uuid": ",".join(f"n-AWSNeuron-{number}" for number in range(10))}
    report = simulated(CLASSES, machines(n=INF2), wanting("two", 2, annotations=avoid))
    assert devices(report) == {"two": ("n", [10, 11])}


def converted(**limits):
    raw = pod("web", limits={f"aws.amazon.com/{name}": amount for name, amount in limits.items()})
    conversion = convert_pod(raw, "team")
    (template,) = conversion.templates
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    return request


def test_devices_become_a_request_for_whole_ones():
    exactly = {"deviceClassName": "neuron-device.hami.io", "allocationMode": "ExactCount", "count": 4}
    assert converted(neuron=4) == {"name": "neuron-0", "exactly": exactly}


def test_cores_become_alternatives_from_few_devices_to_many():
    request = converted(neuroncore=8)
    assert [(each["name"], each["count"], each["capacity"]) for each in request["firstAvailable"]] == [
        ("1-cards", 1, {"requests": {"neuroncores": "8"}}),
        ("2-cards", 2, {"requests": {"neuroncores": "4"}}),
        ("4-cards", 4, {"requests": {"neuroncores": "2"}}),
    ]
    assert [each["deviceClassName"] for each in request["firstAvailable"]] == [
        "neuron-core.hami.io",
        "neuron-device.hami.io",
        "neuron-device.hami.io",
    ]
    (whole,) = request["firstAvailable"][1]["selectors"]
    assert whole["cel"]["expression"] == ('device.capacity["neuron.hami.io"].neuroncores.compareTo(quantity("4")) == 0')


def with_init(app, init):
    raw = pod("web", limits={CORES: app})
    raw["spec"]["initContainers"] = [{"name": "load", "image": "i", "resources": {"limits": {CORES: init}}}]
    return convert_pod(raw, "team")


@pytest.mark.parametrize("cores", [10, 14, 18, 22, 34])
def test_an_init_container_does_not_make_shares_of_whole_devices(cores):
    conversion = with_init(cores, cores)
    (template,) = conversion.templates
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request == converted(neuroncore=cores)
    assert request["exactly"]["deviceClassName"] == "neuron-device.hami.io"
    assert not conversion.warnings


def test_cores_that_do_not_compare_are_not_called_a_percentage():
    (warning,) = with_init(10, 4).warnings
    assert warning.endswith("with what the other containers ask for. Ask for the same amounts in both")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"neuroncore": 9}, 'resources.limits["aws.amazon.com/neuroncore"] is 9'),
        ({"neuroncore": 9}, "must be 1 or a multiple of 2"),
        ({"neuron": 1, "neuroncore": 2}, "are both given"),
        ({"neuron": "some"}, "write a whole number from 0 to 32"),
    ],
)
def test_what_cannot_be_converted_says_why(limits, words):
    with pytest.raises(ConversionRefused) as refused:
        converted(**limits)
    assert words in str(refused.value)


def test_none_at_all_is_no_wish():
    raw = pod("web", limits={DEVICES: 0})
    assert convert_pod(raw, "team").templates == []
