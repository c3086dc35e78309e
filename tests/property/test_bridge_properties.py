"""Whatever a pod looks like: converting it loses nothing, twice is once, and text of users stays text."""

import contextlib
import json
from copy import deepcopy
from dataclasses import fields, is_dataclass

from hypothesis import assume, example, given
from hypothesis import strategies as st

from controller.webhook.admission import difference
from controller.webhook.convert import ConversionRefused, Options, convert_pod
from controller.webhook.request import InvalidRequest, decode
from hami_dra.api import names
from hami_dra.cel import DeviceInput, compile_selector
from hami_dra.cel.parser import parse
from hami_dra.vendors.nvidia.legacy import NvidiaLegacy
from tests.support.conversions import resources_of, template_of
from tests.support.json_patches import json_patch

VENDOR = NvidiaLegacy()
plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.sampled_from(["a", "b", "name", "env", "x/y", "~", ""])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
unknown_fields = st.dictionaries(st.sampled_from(["futureField", "volumes", "other"]), json_values, max_size=2)

amounts = {
    "nvidia.com/gpu": st.integers(0, 4) | st.sampled_from(["1", "2"]),
    "nvidia.com/gpumem": st.integers(0, 50_000) | st.sampled_from(["16k", "7500"]),
    "nvidia.com/gpumem-percentage": st.integers(0, 100),
    "nvidia.com/gpucores": st.integers(0, 120),
}
others = {"cpu": st.just("1"), "example.com/nic": st.integers(0, 2)}
resource_lists = st.fixed_dictionaries({}, optional={**amounts, **others})


@st.composite
def containers(draw, prefix):
    made = []
    for number in range(draw(st.integers(0, 3))):
        container = {"name": f"{prefix}{number}", **draw(unknown_fields)}
        if draw(st.booleans()):
            container["resources"] = draw(
                st.fixed_dictionaries({}, optional={"limits": resource_lists, "requests": resource_lists})
            )
        if prefix == "init" and draw(st.booleans()):
            container["restartPolicy"] = "Always"
        made.append(container)
    return made


items = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=","), min_size=1, max_size=20)
filter_annotations = st.fixed_dictionaries(
    {},
    optional={
        name: st.lists(items, min_size=1, max_size=3).map(",".join)
        for name in (
            "nvidia.com/use-gputype",
            "nvidia.com/nouse-gputype",
            "nvidia.com/use-gpuuuid",
            "nvidia.com/nouse-gpuuuid",
        )
    },
)


@st.composite
def pods(draw):
    pod = {
        "metadata": {"name": "web", **draw(unknown_fields)},
        "spec": {
            "containers": draw(containers("main")),
            "initContainers": draw(containers("init")),
            **draw(unknown_fields),
        },
    }
    if annotations := draw(filter_annotations):
        pod["metadata"]["annotations"] = annotations
    if draw(st.booleans()):
        pod["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimName": "mine"}]
    return pod


options = st.sampled_from(
    [
        Options(),
        Options(gate=False),
        Options(mode="native"),
        Options(mode="native", runtime_classes={"nvidia": "nvidia"}),
    ]
)


def convert(pod, how=None):
    try:
        return convert_pod(pod, "team", how)
    except ConversionRefused:
        assume(False)  # e.g. an annotation of commas and spaces only
        raise


@given(pods(), options)
def test_twice_is_once(pod, how):
    once = convert(pod, how)
    twice = convert_pod(once.pod, "team", how)
    assert twice.pod == once.pod
    assert twice.templates == once.templates
    assert resources_of(twice) == resources_of(once)
    assert twice.left == once.left


def survives(before, after, path=()):
    """Everything of `before` is in `after`, but for vendor resources, and lists that became empty with them."""
    if isinstance(before, dict):
        for key, value in before.items():
            if key in VENDOR.resources and path[-2:-1] == ("resources",):
                continue
            if key in ("limits", "requests") and path[-1:] == ("resources",) and value.keys() <= set(VENDOR.resources):
                continue
            assert key in after, (*path, key)
            survives(value, after[key], (*path, key))
    elif isinstance(before, list):
        for index, value in enumerate(before):
            survives(value, after[index], (*path, index))
    else:
        assert (type(before), before) == (type(after), after), path


@given(pods(), options)
def test_nothing_is_lost_and_nothing_given_is_changed(pod, how):
    given_pod = deepcopy(pod)
    conversion = convert(pod, how)
    assert pod == given_pod
    survives(pod, conversion.pod)
    if how.mode == "exclusive":
        assert not any(f'"{name}"' in json.dumps(conversion.pod["spec"]["containers"]) for name in amounts)


@given(pods())
def test_every_container_gets_at_least_what_it_asked_for(pod):
    conversion = convert(pod)
    if not conversion.templates:
        return
    requests = {
        request["name"]: request["exactly"]
        for request in conversion.templates[0]["spec"]["spec"]["devices"]["requests"]
    }
    named = decode(conversion.pod["metadata"]["annotations"][names.CONVERTED_REQUEST]).requests
    cards = {one.name: one.cards for one in named}
    pointed = set()
    for section in ("containers", "initContainers"):
        for before, after in zip(pod["spec"][section], conversion.pod["spec"][section], strict=True):
            own = convert_pod({"metadata": pod["metadata"], "spec": {"containers": [before]}}, "team")
            for claim in after.get("resources", {}).get("claims", []):
                pointed.add(claim["request"])
                own_request = decode(own.pod["metadata"]["annotations"][names.CONVERTED_REQUEST]).requests[0].cards
                shared = cards[claim["request"]]
                assert shared.joined(own_request) == shared
    assert pointed == set(requests)
    assert sum(request["count"] for request in requests.values()) <= 32


def shuffled(value, flip):
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        entries = [(key, shuffled(entry, flip)) for key, entry in value.items()]
        return dict(reversed(entries) if flip else sorted(entries, key=lambda entry: entry[0]))
    return [shuffled(entry, flip) for entry in value] if isinstance(value, list) else value


@given(pods(), st.booleans())
def test_the_order_of_keys_does_not_matter(pod, flip):
    one, other = convert(pod), convert(shuffled(pod, flip))
    assert json.dumps(one.templates) == json.dumps(other.templates)
    assert one.pod == other.pod


@given(pods())
def test_the_annotation_makes_the_template_again_byte_for_byte(pod):
    conversion = convert(pod)
    for template in conversion.templates:
        annotation = conversion.pod["metadata"]["annotations"][names.CONVERTED_REQUEST]
        assert json.dumps(template_of(annotation, "team")) == json.dumps(template)


# --- text of users -----------------------------------------------------------------------------------------------------------


def shape(node):
    """A parsed expression without the values of its constants and without positions."""
    if is_dataclass(node):
        skipped = {"at", "type", "depth", "slot", "overloads", "value"}
        return type(node).__name__, *(shape(getattr(node, one.name)) for one in fields(node) if one.name not in skipped)
    return [shape(entry) for entry in node] if isinstance(node, list | tuple) else node


INJECTIONS = [
    '"]',
    "' || true || '",
    '\\"',
    "\\",
    '") || (true',
    "]\n|| true",
    "{items}",
    "{0}",
    "\0",
    "é𝔘\u2028",
    "%s",
]


@given(filter_annotations)
@example({"nvidia.com/use-gpuuuid": ",".join(INJECTIONS), "nvidia.com/nouse-gputype": ",".join(INJECTIONS)})
def test_text_never_changes_the_structure_of_an_expression(annotations):
    try:
        filters = VENDOR.filters(annotations)
    except ValueError:
        return
    harmless = {name: tuple(f"x{number}" for number in range(len(found))) for name, found in filters.items()}
    for ours, plain in zip(VENDOR.selectors(filters), VENDOR.selectors(harmless), strict=True):
        assert shape(parse(ours)) == shape(parse(plain))


@given(st.lists(items, min_size=1, max_size=3), items, st.booleans())
@example(INJECTIONS, INJECTIONS[0], True)
@example(["a40"], "NVIDIA A40", False)
def test_expressions_mean_what_hami_means(listed, published, is_uuid):
    kind = "gpuuuid" if is_uuid else "gputype"
    attributes = {"hami.io/uuid": {"string": published}, "hami.io/productName": {"string": published}}
    device = DeviceInput.of("nvidia.hami.io", attributes)
    for use in (True, False):
        name = f"nvidia.com/{'use' if use else 'nouse'}-{kind}"
        try:
            filters = VENDOR.filters({name: ",".join(listed)})
        except ValueError:
            continue
        (expression,) = VENDOR.selectors(filters)
        if is_uuid:
            matches = published in [item.strip() for item in listed]
        else:
            product = ascii_lower(f"NVIDIA-{published}")
            matches = any(ascii_lower(item.strip()) in product for item in listed if item.strip())
        assert compile_selector(expression).evaluate(device) is (matches is use)


def ascii_lower(text):
    return text.encode().lower().decode()  # bytes.lower() knows ASCII only


# --- nothing breaks it -----------------------------------------------------------------------------------------------------


@given(json_values, json_values)
def test_a_difference_leads_from_one_document_to_the_other(before, after):
    patch = difference(before, after)
    assert json.dumps(json_patch(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert difference(after, after) == []


FIELDS = (
    "metadata spec annotations labels containers initContainers resourceClaims schedulingGates resources limits requests "
    "claims env nvidia.com/gpu nvidia.com/gpumem hami.io/dra"
)
shapes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain_text | st.just("true"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), shapes))
@example({"metadata": {"labels": {"hami.io/dra": "true"}}, "spec": {"resourceClaims": [{}], "schedulingGates": [1]}})
def test_pods_of_any_shape_are_converted_or_refused(pod):
    with contextlib.suppress(ConversionRefused):
        convert_pod(pod, "team")


@given(plain_text | shapes.map(json.dumps))
def test_annotations_of_any_shape_are_read_or_refused(annotation):
    with contextlib.suppress(InvalidRequest):
        template_of(annotation, "team")
