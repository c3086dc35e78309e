"""Whatever bytes the API server can store: no exception leaves the reading of it, and every other object is read as without it.

Runs on every supported interpreter (`make unit`): they differ in how deep a parser may recurse.
"""

import asyncio
import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.allocation.errors import AllocatorError
from controller.allocation.request import prepare
from controller.cli.seen import seen
from controller.cli.state import read_cluster
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from controller.webhook.request import InvalidRequest, decode
from hami_dra.api import kinds, names
from hami_dra.api.config import DeviceConfig, read_device_config
from hami_dra.api.errors import InputError
from hami_dra.api.opaque import problem_of
from hami_dra.api.sanitize import MOST_LEVELS, is_deeper, is_unicode, sanitized
from hami_dra.driver.prepare.claim import fingerprint, read_claim
from hami_dra.driver.prepare.errors import PrepareError
from hami_dra.driver.prepare.inventory import Inventory as NodeInventory
from hami_dra.kube.decoding import read_event, read_json, read_json_page, read_object, read_page
from hami_dra.kube.documents import BadDocument, read_documents
from hami_dra.kube.protocol import Broken
from hami_dra.vendors.annotations import MOST_LENGTH, TOO_LONG
from tests.hostile.gojson import DEPTHS, ODD_NUMBERS, ODD_STRINGS, strings, values

DRIVER = "nvidia.hami.io"
DEEP = b'{"a":' * 9_990 + b"0" + b"}" * 9_990
POD = b"""{"metadata":{"name":"%(name)s","namespace":"evil","uid":"uid-%(name)s","resourceVersion":"7",
"labels":{"app":%(text)s},"annotations":{"note":%(text)s,"hami.io/node-scheduler-policy":%(text)s},
"managedFields":[{"manager":"x","fieldsV1":%(free)s}]},
"spec":{"containers":[{"name":"c","env":[{"name":"A","value":%(text)s}],"unknown":%(free)s}],
"resourceClaims":[{"name":"gpu","resourceClaimName":"claim"}]},"status":{"phase":"Pending","more":%(free)s}}"""
NODE = b"""{"metadata":{"name":"%(name)s","uid":"uid-%(name)s","resourceVersion":"7","labels":{"zone":%(text)s},
"annotations":{"note":%(text)s},"managedFields":[{"fieldsV1":%(free)s}]},"spec":{"unknown":%(free)s},
"status":{"allocatable":{"cpu":"8"},"unknown":[%(free)s]}}"""
SLICE = b"""{"metadata":{"name":"%(name)s","uid":"uid-%(name)s","resourceVersion":"7","managedFields":[{"fieldsV1":%(free)s}]},
"spec":{"driver":"nvidia.hami.io","nodeName":"%(name)s","pool":{"name":"%(name)s","generation":1,"resourceSliceCount":1},
"unknown":%(free)s,"devices":[{"name":"gpu-0","attributes":{"hami.io/uuid":{"string":%(text)s}},"unknown":%(free)s}]}}"""
CLAIM = b"""{"metadata":{"name":"%(name)s","namespace":"evil","uid":"uid-%(name)s","resourceVersion":"7",
"annotations":{"note":%(text)s},"managedFields":[{"fieldsV1":%(free)s}]},
"spec":{"devices":{"requests":[{"name":"gpu","exactly":{"deviceClassName":"gpu"}}],
"config":[{"opaque":{"driver":"nvidia.hami.io","parameters":%(free)s}},{"opaque":{"driver":"else.io","parameters":%(free)s}}]}},
"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":"nvidia.hami.io","pool":"n1","device":"gpu-0"}],
"config":[{"source":"FromClaim","opaque":{"driver":"nvidia.hami.io","parameters":%(free)s}}]},"unknown":%(free)s}}}"""
TEMPLATE = b"""{"metadata":{"name":"%(name)s","namespace":"evil","uid":"uid-%(name)s","resourceVersion":"7",
"managedFields":[{"fieldsV1":%(free)s}]},"spec":{"metadata":{"annotations":{"note":%(text)s}},"spec":{"devices":{
"requests":[{"name":"gpu","exactly":{"deviceClassName":"gpu"}}],
"config":[{"opaque":{"driver":"nvidia.hami.io","parameters":%(free)s}}]}}}}"""
OBJECTS = {
    kinds.POD: POD,
    kinds.NODE: NODE,
    kinds.RESOURCE_SLICE: SLICE,
    kinds.RESOURCE_CLAIM: CLAIM,
    kinds.RESOURCE_CLAIM_TEMPLATE: TEMPLATE,
}


def made(kind, name, free=b"{}", text=b'"text"'):
    body = OBJECTS[kind]
    for key, value in ((b"name", name.encode()), (b"free", free), (b"text", text)):
        body = body.replace(b"%(" + key + b")s", value)
    return body.replace(b"\n", b"")


def page(*items):
    return b'{"metadata":{"resourceVersion":"9"},"items":[' + b",".join(items) + b"]}"


def line(body, what=b"MODIFIED"):
    return b'{"type":"' + what + b'","object":' + body + b"}"


def names_of(found):
    return [item.metadata.name for item in found]


hostile = st.tuples(st.sampled_from(list(OBJECTS)), values(), st.one_of(strings(), values()))
CASES = (
    example((kinds.POD, DEEP, b'"x"')),
    example((kinds.RESOURCE_CLAIM, DEEP, b'"x"')),
    example((kinds.RESOURCE_CLAIM, rb'{"a":"\ud800"}', b'"x"')),
    example((kinds.RESOURCE_CLAIM, b'{"a":"\xff"}', b'"x"')),
    example((kinds.RESOURCE_CLAIM_TEMPLATE, DEEP, b'"x"')),
)


def with_cases(test):
    for case in CASES:
        test = case(test)
    return given(hostile)(settings(max_examples=60)(test))


@with_cases
def test_a_list_reads_every_other_object_as_without_it(case):
    kind, free, text = case
    before, after = made(kind, "before"), made(kind, "after")
    found = read_page(kind, page(before, made(kind, "evil", free, text), after))
    alone = read_page(kind, page(before, after))
    assert [item for item in found.items if item.metadata.name != "evil"] == list(alone.items)
    assert "evil" in names_of(found.items) or [each.object.metadata.name for each in found.broken] == ["evil"]
    assert {each.object.metadata.name for each in found.broken} <= {"evil"}
    assert all(each.object.metadata.uid == "uid-evil" for each in found.broken)


@with_cases
def test_a_watch_goes_on(case):
    kind, free, text = case
    event = read_event(kind, line(made(kind, "evil", free, text)))
    assert event.type == "MODIFIED"
    assert (event.object.metadata.name, event.object.metadata.resource_version) == ("evil", "7")
    if isinstance(event, Broken):
        assert event.problem
    assert read_event(kind, line(made(kind, "good"))).object == read_object(kind, made(kind, "good"))[0]


@with_cases
def test_one_object_is_read_or_named(case):
    kind, free, text = case
    body = made(kind, "evil", free, text)
    try:
        found, _ = read_object(kind, body)
    except msgspec.ValidationError:
        found = None  # a label that is no text, say
    assert found is not None or kind is not kinds.RESOURCE_CLAIM
    if found is not None:
        assert found.metadata.name == "evil"
        msgspec.json.encode(found)
    assert read_json(body)["metadata"]["name"] == "evil"


class Answers:
    """An API server that lists these and nothing else."""

    def __init__(self, **pages):
        self.pages = pages

    async def list_raw(self, kind, *, on_page):
        items = read_json_page(self.pages.get(kind.plural, page())).items
        on_page(len(items), 0)
        return items


@with_cases
def test_the_cli_shows_everything_else(case):
    kind, free, text = case
    good = {plain: made(plain, "good") for plain in OBJECTS}

    def state(evil):
        skipped = []
        items = {plain.plural: page(body, *([evil] if evil and plain is kind else [])) for plain, body in good.items()}
        return seen(asyncio.run(read_cluster(Answers(**items), skipped=skipped.append))), skipped

    found, skipped = state(made(kind, "evil", free, text))
    alone, _ = state(b"")
    for plain in OBJECTS:
        others = [item for item in found.of(plain) if item.metadata.name != "evil"]
        assert others == list(alone.of(plain))
    shown = any(item.metadata.name == "evil" for item in found.of(kind))
    assert shown != any("evil" in text for text in skipped)


@with_cases
def test_a_claim_of_whatever_bytes_is_counted_decided_on_and_prepared_or_refused_by_name(case):
    _, free, text = case
    claim, problem = read_object(kinds.RESOURCE_CLAIM, made(kinds.RESOURCE_CLAIM, "evil", free, text))
    inventory = Inventory()
    inventory.claim_changed(None, claim)
    assert inventory.usage.in_use(DeviceId(DRIVER, "n1", "gpu-0"))
    waiting = msgspec.structs.replace(claim, status=type(claim.status)())
    device_class = kinds.DEVICE_CLASS.type(metadata=type(claim.metadata)(name="gpu"))
    if problem or not isinstance(
        read_device_config(bytes(claim.spec.devices.config[0].opaque.parameters)), DeviceConfig
    ):
        with pytest.raises(AllocatorError, match="ResourceClaim evil/evil"):
            prepare([waiting], {"gpu": device_class})
    else:
        prepare([waiting], {"gpu": device_class})
    fingerprint(claim, DRIVER)
    with pytest.raises(PrepareError, match="ResourceClaim evil/evil"):
        read_claim(claim, NodeInventory(driver=DRIVER, pool="n1", devices={}, counters={}))


# --- the text itself -------------------------------------------------------------------------------------------------


@given(values())
@settings(max_examples=150)
def test_what_is_sanitized_is_json_to_everybody_and_stays_as_it_is(value):
    found = sanitized(b'{"value":' + value + b"}", numbers=True)
    assert not is_deeper(found, MOST_LEVELS)
    msgspec.json.decode(found)
    json.loads(found)
    assert sanitized(found, numbers=True) == found


@given(st.recursive(st.one_of(st.integers(-(2**63), 2**63), st.text(), st.floats(allow_nan=False, allow_infinity=False)),
                    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=20))  # fmt: skip
def test_ordinary_json_is_not_changed(value):
    for text in (
        json.dumps(value).encode(),
        json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "replace"),
    ):
        assert sanitized(text, numbers=True) == text


def depth_of(text):
    """Byte by byte."""
    depth = most = 0
    inside = escaped = False
    for byte in text:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = not escaped and byte == ord("\\")
        elif byte in b"[{":
            depth += 1
            most = max(most, depth)
        elif byte in b"]}":
            depth -= 1
        else:
            inside = byte == ord('"')
    return most


@given(values(), st.sampled_from((1, 2, 10, 50, 100, 1_199)))
def test_depth_is_measured_as_byte_by_byte(value, levels):
    assert is_deeper(value, levels) == (depth_of(value) > levels)


@pytest.mark.parametrize("depth", DEPTHS)
def test_only_what_is_below_the_level_is_cut(depth):
    wide = b'{"a":"]","deep":' + b"[" * depth + b'"x"' + b"]" * depth + b',"after":[{"b":1}]}'
    found = json.loads(sanitized(wide))
    assert found["a"] == "]"
    assert found["after"] == [{"b": 1}]
    assert depth_of(sanitized(wide)) == max(3, min(depth + 1, MOST_LEVELS))


def test_a_region_that_spans_many_chunks_is_cut_whole():
    long = b'{"a":' + b"[" * 150 + b'"' + b'\\\\\\"]' * 300_000 + b'"' + b"]" * 150 + b',"b":2}'
    assert json.loads(sanitized(long))["b"] == 2
    assert len(sanitized(long)) < 1_000


@pytest.mark.parametrize("text", ODD_STRINGS)
def test_odd_strings_become_text(text):
    found = sanitized(b'{"a":' + text + b"}")
    assert is_unicode(found)
    json.loads(found)["a"].encode()


@pytest.mark.parametrize("number", ODD_NUMBERS)
def test_odd_numbers_are_numbers_or_text(number):
    found = msgspec.json.decode(sanitized(b'{"a":[' + number + b',"1e999"]}', numbers=True))
    msgspec.json.encode(found)
    assert found["a"][1] == "1e999"


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (b"[" * 51 + b"]" * 51, "nested more than 50 levels deep"),
        (DEEP, "nested more than 50 levels deep"),
        (rb'{"a":"\ud800"}', "not Unicode"),
        (b'{"a":"\xff"}', "not Unicode"),
        (rb'{"a":"\uFFFD"}', "not Unicode"),
        (b'{"a":1e400}', "number"),
        (b'{"a":' + b"9" * 5_000 + b"}", "number"),
        (b'{"hami.io/unreadable":"somebody says so"}', "somebody says so"),
        (rb'{"a":"\u0000\ud83d\ude00","A":1,"a":2,"b":1.5e300}', ""),
        (b"[" * 50 + b"]" * 50, ""),
    ],
)
def test_parameters_are_usable_or_it_is_said_why_not(parameters, problem):
    found = problem_of(msgspec.Raw(parameters))
    assert problem in found if problem else found == ""


def test_an_object_says_which_of_its_parameters_cannot_be_read():
    _, problem = read_object(kinds.RESOURCE_CLAIM, made(kinds.RESOURCE_CLAIM, "evil", DEEP))
    assert "spec.devices.config[0].opaque.parameters: nested more than 50 levels deep" in problem
    assert "status.allocation.devices.config[0].opaque.parameters" in problem


# --- claims that do not fit ------------------------------------------------------------------------------------------


def test_a_claim_that_does_not_fit_keeps_its_devices_its_marks_and_its_reservations():
    raw = json.loads(made(kinds.RESOURCE_CLAIM, "odd"))
    raw["metadata"] |= {
        "annotations": {names.CONVERTED_REQUEST: "{}"},
        "finalizers": ["a", 5],
        "labels": {"a": 1, "b": "2"},
    }
    raw["spec"]["devices"]["requests"] = {"a": "newer form"}
    raw["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}, "somebody"]
    raw["status"]["allocation"]["devices"]["results"] += [
        {"request": 5, "driver": DRIVER, "pool": "n1", "device": "gpu-1", "consumedCapacity": 7},
        {"request": "gpu"},
    ]
    found = read_page(kinds.RESOURCE_CLAIM, page(json.dumps(raw).encode(), made(kinds.RESOURCE_CLAIM, "good")))
    odd, good = found.items
    assert good == read_object(kinds.RESOURCE_CLAIM, made(kinds.RESOURCE_CLAIM, "good"))[0]
    assert [(each.object.key, bool(each.problem)) for each in found.broken] == [("evil/odd", True)]
    assert odd.metadata.annotations == {names.CONVERTED_REQUEST: "{}"}
    assert odd.metadata.finalizers == ("a",)
    assert [consumer.name for consumer in odd.status.reserved_for] == ["p"]
    inventory = Inventory()
    inventory.claim_changed(None, odd)
    assert [inventory.usage.in_use(DeviceId(DRIVER, "n1", name)) for name in ("gpu-0", "gpu-1", "gpu-2")] == [
        True,
        True,
        False,
    ]
    with pytest.raises(AllocatorError, match="evil/odd: cannot be read"):
        prepare([msgspec.structs.replace(odd, status=type(odd.status)())], {})
    with pytest.raises(PrepareError, match="evil/odd: cannot be read"):
        read_claim(odd, NodeInventory(driver=DRIVER, pool="n1", devices={}, counters={}))


def test_the_results_of_the_newest_version_count():
    good, _ = read_object(kinds.RESOURCE_CLAIM, made(kinds.RESOURCE_CLAIM, "claim"))
    raw = json.loads(made(kinds.RESOURCE_CLAIM, "claim"))
    raw["spec"]["devices"]["requests"] = "?"
    raw["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    odd, _ = read_object(kinds.RESOURCE_CLAIM, json.dumps(raw).encode())
    inventory = Inventory()
    inventory.claim_changed(None, good)
    inventory.claim_changed(good, odd)
    assert [inventory.usage.in_use(DeviceId(DRIVER, "n1", name)) for name in ("gpu-0", "gpu-1")] == [False, True]


# --- annotations -----------------------------------------------------------------------------------------------------


def choice(levels):
    return '{"count":1,"alternatives":[' * levels + '{"count":2}' + "]}" * levels


@pytest.mark.parametrize("levels", [2, 400, 1_200, 5_300])
def test_a_converted_request_has_no_alternatives_in_its_alternatives(levels):
    annotation = f'{{"requests":[{{"name":"nvidia-0","vendor":"nvidia","cards":{choice(levels)}}}]}}'
    with pytest.raises(InvalidRequest, match=names.CONVERTED_REQUEST):
        decode(annotation)


@pytest.mark.parametrize(
    "annotation", ["x" * (MOST_LENGTH + 1), TOO_LONG, "[" * 9_000, "\ud800", '"\\ud800"', "{}", "null"]
)
def test_a_converted_request_of_any_text_is_refused_by_name(annotation):
    with pytest.raises(InvalidRequest, match=names.CONVERTED_REQUEST):
        decode(annotation)


# --- files -----------------------------------------------------------------------------------------------------------


@given(values())
@settings(max_examples=40)
def test_files_of_any_bytes_are_read_or_refused_by_name(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("files")
    for name, text in (
        ("a.json", value),
        ("b.json", b'{"kind":"Pod","spec":' + value + b"}"),
        ("c.yaml", b"kind: Pod\nspec: " + value),
    ):
        file = folder / name
        file.write_bytes(text)
        refused = ""
        try:
            seen(read_documents([file]))
        except (BadDocument, InputError) as error:
            refused = str(error)
        assert not refused or str(file) in refused


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 200_000, "\n".join(f"{' ' * depth}a:" for depth in range(3_000)), "- " * 50_000 + "a"]
)
def test_yaml_of_any_depth_is_refused_without_recursion(tmp_path, text):
    file = tmp_path / "deep.yaml"
    file.write_text("kind: Pod\n---\n" + text + "\n")
    with pytest.raises(BadDocument, match=r"deep.yaml, document 2.*levels deep"):
        read_documents([file])
