"""Legacy pods become claims: every row of HAMi's table of what is given and what is asked for."""

import re
from copy import deepcopy

import pytest

from controller.webhook.convert import ConversionRefused, Options, convert_pod
from hami_dra.api import names
from tests.support.conversions import resources_of, template_of

NATIVE = Options(mode="native")


def pod(*containers, init=(), annotations=None, labels=None, **spec):
    metadata = {"name": "web"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    spec = {"containers": list(containers), **spec}
    if init:
        spec["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def container(name="main", *, requests=None, **limits):
    resources = {}
    if limits:
        resources["limits"] = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    if requests:
        resources["requests"] = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in requests.items()}
    return {"name": name, "image": "busybox", "resources": resources}


def converted(*args, options=None, **kwargs):
    return convert_pod(pod(*args, **kwargs), "team", options)


def requests_of(conversion):
    (template,) = conversion.templates
    return {request["name"]: request["exactly"] for request in template["spec"]["spec"]["devices"]["requests"]}


def only_request(conversion):
    (request,) = requests_of(conversion).values()
    return request


def parameters_of(conversion):
    (template,) = conversion.templates
    return [entry["opaque"]["parameters"] for entry in template["spec"]["spec"]["devices"].get("config", [])]


def asked(**limits):
    """class, count, capacity, memoryPercent, priority of a pod with one container."""
    conversion = converted(container(**limits))
    request = only_request(conversion)
    parameters = parameters_of(conversion)[0] if parameters_of(conversion) else {}
    return (
        request["deviceClassName"],
        request["count"],
        request["capacity"]["requests"],
        parameters.get("memoryPercent"),
        parameters.get("priority"),
    )


WHOLE, SHARED = "nvidia-gpu.hami.io", "nvidia-vgpu.hami.io"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"gpu": 1}, (WHOLE, 1, {"cores": "100"}, None, None), id="one whole idle card"),
        pytest.param({"gpu": "4"}, (WHOLE, 4, {"cores": "100"}, None, None), id="four whole cards"),
        pytest.param(
            {"gpu": 1, "gpumem": "7500"}, (SHARED, 1, {"cores": "0", "memory": "7500Mi"}, None, None), id="memory"
        ),
        pytest.param(
            {"gpu": 2, "gpumem": 8192, "gpucores": 30},
            (SHARED, 2, {"cores": "30", "memory": "8Gi"}, None, None),
            id="memory and cores of two cards",
        ),
        pytest.param({"gpu": 1, "gpucores": 50}, (SHARED, 1, {"cores": "50"}, None, None), id="cores, all memory"),
        pytest.param({"gpu": 1, "gpucores": 100}, (WHOLE, 1, {"cores": "100"}, None, None), id="all cores"),
        pytest.param({"gpu": 1, "gpucores": 0}, (SHARED, 1, {"cores": "0"}, None, None), id="cores 0 is given"),
        pytest.param({"gpu": 1, "gpumem_percentage": 50}, (SHARED, 1, {"cores": "0"}, 50, None), id="percentage"),
        pytest.param(
            {"gpu": 1, "gpumem_percentage": 100}, (WHOLE, 1, {"cores": "100"}, None, None), id="100 percent is whole"
        ),
        pytest.param(
            {"gpu": 1, "gpumem_percentage": 100, "gpucores": 10},
            (SHARED, 1, {"cores": "10"}, None, None),
            id="100 percent of the memory, some cores",
        ),
        pytest.param(
            {"gpu": 1, "gpumem": 0}, (SHARED, 1, {"cores": "0"}, None, None), id="memory 0 is all, not exclusive"
        ),
        pytest.param(
            {"gpu": 1, "gpumem_percentage": 0},
            (SHARED, 1, {"cores": "0"}, None, None),
            id="percentage 0 is all, not exclusive",
        ),
        pytest.param({"gpumem": 512}, (SHARED, 1, {"cores": "0", "memory": "512Mi"}, None, None), id="no count: one"),
        pytest.param({"gpucores": 20}, (SHARED, 1, {"cores": "20"}, None, None), id="only cores: one card"),
        pytest.param({"gpumem_percentage": 20}, (SHARED, 1, {"cores": "0"}, 20, None), id="only percentage: one card"),
        pytest.param(
            {"gpu": 1, "gpumem": 100, "priority": 0},
            (SHARED, 1, {"cores": "0", "memory": "100Mi"}, None, 0),
            id="high priority",
        ),
        pytest.param(
            {"gpu": 1, "gpumem": "16k"},
            (SHARED, 1, {"cores": "0", "memory": "16000Mi"}, None, None),
            id="as the API server writes 16000",
        ),
        pytest.param({"gpu": 1.0}, (WHOLE, 1, {"cores": "100"}, None, None), id="as YAML may read a number"),
    ],
)
def test_what_is_given_and_what_is_asked_for(limits, expected):
    assert asked(**limits) == expected


def test_memory_wins_over_percentage_and_says_so():
    conversion = converted(container(gpu=1, gpumem=100, gpumem_percentage=50))
    assert only_request(conversion)["capacity"]["requests"]["memory"] == "100Mi"
    assert parameters_of(conversion) == []
    assert conversion.warnings == (
        'container "main": resources.limits["nvidia.com/gpumem-percentage"] is ignored, because nvidia.com/gpumem is given as well',
    )


def test_more_cores_than_a_card_has_are_a_whole_card_and_a_warning():
    conversion = converted(container(gpu=1, gpumem=100, gpucores=150))
    assert only_request(conversion)["capacity"]["requests"]["cores"] == "100"
    assert "is 150, more than a card has; 100 is used" in conversion.warnings[0]


def test_limits_are_read_before_requests():
    conversion = converted(container(gpu=2, requests={"gpu": 1, "gpumem": 300}))
    request = only_request(conversion)
    assert (request["count"], request["capacity"]["requests"]["memory"]) == (2, "300Mi")
    assert conversion.pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": "hami", "request": "nvidia-0"}]}


def test_other_resources_stay():
    raw = pod(container(gpu=1))
    raw["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "1", "example.com/nic": 1}
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "500m"}
    resources = convert_pod(raw, "team").pod["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "1", "example.com/nic": 1}
    assert resources["requests"] == {"cpu": "500m"}


def test_a_count_of_zero_asks_for_nothing_and_leaves_nothing_behind():
    conversion = converted(container(gpu=0, gpumem=100))
    assert conversion.templates == []
    assert conversion.pod["spec"]["containers"][0]["resources"] == {}
    assert "resourceClaims" not in conversion.pod["spec"]


def test_priority_is_an_environment_variable_too():
    raw = pod(container(gpu=1, priority="1"))
    raw["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    conversion = convert_pod(raw, "team")
    assert conversion.pod["spec"]["containers"][0]["env"] == [
        {"name": "A", "value": "b"},
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
    ]
    assert parameters_of(conversion) == [
        {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "priority": 1},
    ]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"gpu": "one"},
            "resources.limits[\"nvidia.com/gpu\"] is 'one', but it counts cards: write a whole number from 0 to 32",
        ),
        ({"gpu": "500m"}, "counts cards"),
        ({"gpu": 33}, "from 0 to 32"),
        ({"gpu": -1}, "from 0 to 32"),
        ({"gpu": True}, "counts cards"),
        ({"gpu": [1]}, "counts cards"),
        ({"gpu": "1Ki"}, "from 0 to 32"),
        ({"gpu": 1, "gpumem": "16Gi"}, 'write "16384" instead'),
        ({"gpu": 1, "gpumem": "16.0Gi"}, 'write "16384" instead'),
        ({"gpu": 1, "gpumem": "7500Mi"}, 'write "7500" instead'),
        ({"gpu": 1, "gpumem": "512M"}, 'write "488" instead'),
        ({"gpu": 1, "gpumem": "1Ki"}, "counts MiB of each card"),
        ({"gpu": 1, "gpumem": "4000m"}, "counts MiB of each card: write a whole number"),
        ({"gpu": "1000m"}, "counts cards: write a whole number"),
        ({"gpu": 1, "gpucores": "50000m"}, "is a percentage of each card's cores: write a whole number"),
        ({"gpu": 1, "gpumem": "0.5"}, "counts MiB of each card"),
        ({"gpu": 1, "gpumem": -5}, "counts MiB of each card"),
        (
            {"gpu": 1, "gpumem_percentage": 101},
            "is a percentage of each card's memory: write a whole number from 0 to 100",
        ),
        ({"gpu": 1, "gpucores": "half"}, "is a percentage of each card's cores"),
        ({"gpu": 1, "priority": 2}, "is 0 (high) or 1 (low): write a whole number from 0 to 1"),
        ({"priority": 1}, "stands without nvidia.com/gpu; add nvidia.com/gpu: 1 or remove it"),
    ],
)
def test_what_cannot_be_is_refused_with_container_field_and_fix(limits, message):
    with pytest.raises(ConversionRefused) as refused:
        converted(container(**limits))
    assert str(refused.value).startswith('Pod team/web: container "main": resources.limits["nvidia.com/')
    assert message in str(refused.value)


@pytest.mark.parametrize(("mib", "warned"), [(4, True), (99, True), (100, False), (0, False)])
def test_memory_in_which_nothing_starts_is_warned_of(mib, warned):
    """An API server writes 4000m as 4, before the webhook sees it."""
    warnings = converted(container(gpu=1, gpumem=mib)).warnings
    text = (
        f'container "main": it asks for {mib} MiB of memory of each device, which is too little to start most programs'
    )
    assert warnings == ((text,) if warned else ())


def test_all_problems_are_told_at_once():
    with pytest.raises(ConversionRefused) as refused:
        converted(container("a", gpu="x"), container("b", gpu=1), init=[container("c", gpu=1, gpumem="1Gi")])
    assert [problem.split(":")[0] for problem in refused.value.problems] == ['init container "c"', 'container "a"']


def test_a_refused_pod_is_not_touched():
    raw = pod(container("a", gpu=1), container("b", gpu="x"))
    before = deepcopy(raw)
    with pytest.raises(ConversionRefused):
        convert_pod(raw, "team")
    assert raw == before


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": "none"},
        {"containers": [None]},
        {"containers": [{"name": "a", "resources": []}]},
        {"containers": [{"name": "a", "resources": {"limits": "1"}}]},
        {"containers": [], "resourceClaims": "x"},
    ],
)
def test_a_pod_of_the_wrong_shape_is_refused_not_crashed_on(spec):
    with pytest.raises(ConversionRefused, match="must be"):
        convert_pod({"metadata": {"name": "web"}, "spec": spec}, "team")


@pytest.mark.parametrize("raw", [{}, {"metadata": None, "spec": None}, {"spec": {"containers": None}}])
def test_an_empty_pod_passes(raw):
    assert convert_pod(raw, "team").pod == raw


def test_pods_of_a_replica_set_are_named_by_their_prefix():
    raw = pod(container(gpu="x"))
    raw["metadata"] = {"generateName": "web-5f7-"}
    with pytest.raises(ConversionRefused, match=r"^Pod team/web-5f7-\.\.\.: "):
        convert_pod(raw, "team")


# --- several containers ----------------------------------------------------------------------------------------------


def pointers(conversion):
    spec = conversion.pod["spec"]
    return {
        one["name"]: [claim["request"] for claim in one["resources"].get("claims", [])]
        for one in (*spec.get("initContainers", ()), *spec["containers"])
    }


def sidecar(name, **limits):
    return {**container(name, **limits), "restartPolicy": "Always"}


def test_app_containers_have_cards_of_their_own():
    conversion = converted(container("a", gpu=1, gpumem=100), container("b", gpu=2), container("c"))
    assert pointers(conversion) == {"a": ["nvidia-0"], "b": ["nvidia-1"], "c": []}
    assert [request["count"] for request in requests_of(conversion).values()] == [1, 2]


def test_init_and_app_container_share_a_request_of_the_larger_size():
    conversion = converted(
        container("app", gpu=1, gpumem=9000), init=[container("load", gpu=2, gpumem=100, gpucores=10)]
    )
    assert pointers(conversion) == {"load": ["nvidia-0"], "app": ["nvidia-0"]}
    request = only_request(conversion)
    assert request["count"] == 2
    assert request["capacity"]["requests"] == {"cores": "10", "memory": "9000Mi"}


def test_an_init_container_that_wants_a_whole_card_makes_the_shared_request_one():
    request = only_request(converted(container("app", gpu=1, gpumem=100), init=[container("load", gpu=1)]))
    assert request["deviceClassName"] == WHOLE
    assert request["capacity"]["requests"] == {"cores": "100"}


def test_init_containers_run_one_after_the_other():
    conversion = converted(container("app"), init=[container("one", gpu=1, gpumem=100), container("two", gpumem=200)])
    assert pointers(conversion) == {"one": ["nvidia-0"], "two": ["nvidia-0"], "app": []}
    assert only_request(conversion)["capacity"]["requests"]["memory"] == "200Mi"


def test_sidecars_add_up():
    conversion = converted(
        container("app", gpu=1, gpumem=100),
        init=[sidecar("proxy", gpu=1, gpumem=50), container("load", gpumem=70)],
    )
    assert pointers(conversion) == {"proxy": ["nvidia-1"], "load": ["nvidia-0"], "app": ["nvidia-0"]}
    assert [one["capacity"]["requests"]["memory"] for one in requests_of(conversion).values()] == ["100Mi", "50Mi"]


def test_a_percentage_and_a_size_cannot_be_compared():
    conversion = converted(container("app", gpumem=100), init=[container("load", gpumem_percentage=10)])
    assert pointers(conversion) == {"load": ["nvidia-1"], "app": ["nvidia-0"]}
    assert conversion.warnings[0].startswith('init container "load" gets devices of its own')
    assert conversion.warnings[0].endswith("Give the memory of both in MiB")


def test_percentages_compare_with_each_other():
    conversion = converted(container("app", gpumem_percentage=30), init=[container("load", gpumem_percentage=40)])
    assert parameters_of(conversion)[0]["memoryPercent"] == 40


def test_a_claim_holds_32_cards():
    with pytest.raises(ConversionRefused, match="ask for 40 devices together, and a claim holds 32; split the pod"):
        converted(*(container(f"c{number}", gpu=8) for number in range(5)))


# --- annotations ------------------------------------------------------------------------------------------------------


def selectors(**annotations):
    full = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
    request = only_request(converted(container(gpu=1), annotations=full))
    return [selector["cel"]["expression"] for selector in request.get("selectors", [])]


TYPE = '("nvidia-" + device.attributes["hami.io"].productName.lowerAscii()).contains(text)'


def test_types_are_looked_for_in_the_product_name_whatever_the_case():
    assert selectors(use_gputype="V100, a100 ,,A100") == [f'["a100", "v100"].exists(text, {TYPE})']
    assert selectors(nouse_gputype="Tesla T4") == [f'!["tesla t4"].exists(text, {TYPE})']


def test_uuids_are_exact():
    assert selectors(use_gpuuuid="GPU-b,GPU-A") == ['device.attributes["hami.io"].uuid in ["GPU-A", "GPU-b"]']
    assert selectors(nouse_gpuuuid="GPU-b") == ['!(device.attributes["hami.io"].uuid in ["GPU-b"])']


def test_every_annotation_is_a_selector_of_its_own_and_all_apply():
    assert len(selectors(use_gputype="a", nouse_gputype="b", use_gpuuuid="c", nouse_gpuuuid="d")) == 4


def test_quotes_and_backslashes_stay_text():
    assert selectors(use_gpuuuid='a"] || true || "\\') == [
        r'device.attributes["hami.io"].uuid in ["a\"] || true || \"\\"]'
    ]


@pytest.mark.parametrize("value", ["", " ", " , ,"])
@pytest.mark.parametrize("name", ["use_gputype", "nouse_gputype", "use_gpuuuid", "nouse_gpuuuid", "vgpu_mode"])
def test_an_empty_list_is_no_constraint(name, value):
    """As in HAMi; a list of nothing but commas is as empty."""
    assert selectors(**{name: value.replace(",", "") if name == "vgpu_mode" else value}) == []


def test_a_list_longer_than_a_selector_may_be_is_refused():
    with pytest.raises(ConversionRefused, match=r"has 400 items: .* shorten the list"):
        selectors(use_gpuuuid=",".join(f"GPU-{number:036}" for number in range(400)))


def test_an_annotation_that_is_no_text_is_refused():
    with pytest.raises(ConversionRefused, match="put it in quotes"):
        selectors(use_gputype=100)


def test_annotations_of_pods_without_cards_are_not_read():
    raw = pod(container(), annotations={"nvidia.com/use-gputype": ""})
    assert convert_pod(raw, "team").pod == raw


def test_policies_are_carried_over_untouched():
    annotations = {names.NODE_POLICY: "spread", names.DEVICE_POLICY: "no such policy"}
    kept = converted(container(gpu=1), annotations=annotations).pod["metadata"]["annotations"]
    assert annotations.items() <= kept.items()


# --- what a converted pod looks like ---------------------------------------------------------------------------------


def test_label_claim_gate_and_template_belong_together():
    conversion = converted(container(gpu=1, gpumem=100))
    template = conversion.templates[0]
    assert template["metadata"]["name"] == f"hami-{template['metadata']['labels'][names.TEMPLATE_HASH_LABEL]}"
    assert template["metadata"]["namespace"] == "team"
    assert conversion.pod["metadata"]["labels"] == {"hami.io/dra": "true"}
    assert conversion.pod["spec"]["resourceClaims"] == [
        {"name": "hami", "resourceClaimTemplateName": template["metadata"]["name"]}
    ]
    assert conversion.pod["spec"]["schedulingGates"] == [{"name": "hami.io/allocation"}]
    assert resources_of(conversion) == ("nvidia.com/gpu", "volcano.sh/vgpu-number")
    annotation = conversion.pod["metadata"]["annotations"][names.CONVERTED_REQUEST]
    assert template_of(annotation, "team") == template


def test_the_same_wish_is_the_same_template_whoever_has_it():
    one = converted(container("a", gpu=1, gpumem=100, gpucores=10), annotations={"nvidia.com/use-gputype": "A,b"})
    other = converted(
        container("b", requests={"gpucores": "10", "gpumem": "100", "gpu": "1"}),
        annotations={"nvidia.com/use-gputype": "B, a", "x": "y"},
        labels={"app": "z"},
    )
    assert one.templates == other.templates


def test_claims_of_the_user_stay_and_keep_their_names():
    own = [{"name": "hami", "resourceClaimName": "mine"}, {"name": "hami-2", "resourceClaimName": "mine-too"}]
    main = container(gpu=1)
    main["resources"]["claims"] = [{"name": "hami"}]
    conversion = converted(main, resourceClaims=own)
    assert conversion.pod["spec"]["resourceClaims"][:2] == own
    assert conversion.pod["spec"]["resourceClaims"][2]["name"] == "hami-3"
    assert conversion.pod["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "hami"},
        {"name": "hami-3", "request": "nvidia-0"},
    ]


def test_a_converted_pod_needs_its_template_still():
    conversion = converted(container(gpu=1))
    again = convert_pod(conversion.pod, "team")
    assert again.pod == conversion.pod
    assert again.templates == conversion.templates
    assert resources_of(again) == resources_of(conversion)


def test_a_container_injected_after_the_conversion_is_added_to_the_claim():
    first = converted(container("app", gpu=1, gpumem=100))
    injected = deepcopy(first.pod)
    injected["spec"]["containers"].append(container("extra", gpu=1, gpumem=50))
    second = convert_pod(injected, "team")
    assert pointers(second) == {"app": ["nvidia-0"], "extra": ["nvidia-1"]}
    assert list(requests_of(second)) == ["nvidia-0", "nvidia-1"]
    assert len(second.pod["spec"]["resourceClaims"]) == 1
    assert (
        second.pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == second.templates[0]["metadata"]["name"]
    )
    assert second.templates != first.templates


@pytest.mark.parametrize("annotation", ["not json", "{}", '{"requests":[]}'])
def test_an_annotation_that_was_copied_from_elsewhere_says_nothing(annotation):
    conversion = converted(container(gpu=1), annotations={names.CONVERTED_REQUEST: annotation})
    assert list(requests_of(conversion)) == ["nvidia-0"]
    assert conversion.pod["metadata"]["annotations"][names.CONVERTED_REQUEST] != annotation


def test_a_pod_that_opted_out_is_left_alone():
    raw = pod(container(gpu="nonsense"), labels={"hami.io/webhook": "ignore", "hami.io/dra": "true"})
    conversion = convert_pod(raw, "team")
    assert conversion.pod == raw
    assert conversion.templates == []


# --- the gate --------------------------------------------------------------------------------------------------------


def gates(raw, options=None):
    return [gate["name"] for gate in convert_pod(raw, "team", options).pod["spec"].get("schedulingGates", [])]


OURS = "hami.io/allocation"
CLAIM = {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}]}


@pytest.mark.parametrize(
    ("raw", "options", "expected"),
    [
        pytest.param(pod(container(gpu=1)), None, [OURS], id="converted"),
        pytest.param(pod(container(gpu=1), schedulerName="volcano"), None, [], id="another scheduler"),
        pytest.param(
            pod(container(gpu=1), schedulerName="volcano"), Options(schedulers=("volcano",)), [OURS], id="a listed one"
        ),
        pytest.param(
            pod(container(), labels={"hami.io/dra": "true"}, nodeName="n1", **CLAIM), None, [], id="placed already"
        ),
        pytest.param(pod(container(gpu=1)), Options(gate=False), [], id="switched off"),
        pytest.param(pod(container(gpu=1, gpumem=1)), NATIVE, [], id="native mode"),
        pytest.param(
            pod(container(gpu=1), schedulingGates=[{"name": "kueue"}]), None, ["kueue", OURS], id="beside another's"
        ),
        pytest.param(pod(container(gpu=1), schedulingGates=[{"name": OURS}]), None, [OURS], id="only once"),
        pytest.param(pod(container(), **CLAIM), None, [], id="claims that say nothing"),
        pytest.param(pod(container(), labels={"hami.io/dra": "true"}, **CLAIM), None, [OURS], id="claims and label"),
        pytest.param(pod(container(), labels={"hami.io/dra": "false"}, **CLAIM), None, [], id="claims and a no"),
        pytest.param(
            pod(container(), annotations={names.DEVICE_POLICY: "spread"}, **CLAIM), None, [OURS], id="claims and policy"
        ),
        pytest.param(
            pod(container(), annotations={names.NODE_POLICY: "spread"}), None, [], id="a policy without claims"
        ),
    ],
)
def test_the_gate_is_put_only_where_it_will_be_lifted(raw, options, expected):
    assert gates(raw, options) == expected


# --- native mode -------------------------------------------------------------------------------------------------------


def test_plain_whole_cards_stay_extended_resources_in_native_mode():
    raw = pod(container("a", gpu=2), init=[container("b", requests={"gpu": 1})])
    conversion = convert_pod(raw, "team", NATIVE)
    assert conversion.pod == raw
    assert conversion.left == ("nvidia.com/gpu",)
    assert resources_of(conversion) == ()


@pytest.mark.parametrize(
    "kwargs",
    [{"gpu": 1, "gpumem": 100}, {"gpu": 1, "gpucores": 50}, {"gpu": 1, "gpucores": 100}, {"gpu": 1, "priority": 1}],
)
def test_what_an_extended_resource_cannot_say_is_converted_in_native_mode(kwargs):
    conversion = converted(container("a", **kwargs), container("b", gpu=1), options=NATIVE)
    assert pointers(conversion) == {"a": ["nvidia-0"], "b": []}
    assert conversion.pod["spec"]["containers"][1]["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_a_choice_of_cards_is_converted_in_native_mode():
    conversion = converted(container(gpu=1), annotations={"nvidia.com/use-gputype": "A100"}, options=NATIVE)
    assert only_request(conversion)["deviceClassName"] == WHOLE


def test_percentages_are_refused_in_native_mode():
    with pytest.raises(ConversionRefused, match=r'container "main": a percentage of memory .* ask for MiB'):
        converted(container(gpu=1, gpumem_percentage=50), options=NATIVE)


# --- RuntimeClass ------------------------------------------------------------------------------------------------------

BY_VENDOR = {"nvidia": "nvidia", "kunlunxin": "xpu"}
XPU = {"name": "xpu", "image": "busybox", "resources": {"limits": {"kunlunxin.com/xpu": 1}}}


@pytest.mark.parametrize(
    ("raw", "mode", "expected"),
    [
        pytest.param(pod(container(gpu=1)), "exclusive", "nvidia", id="it asks for a GPU"),
        pytest.param(pod(container(), init=[container("a", gpumem=1)]), "exclusive", "nvidia", id="an init container"),
        pytest.param(pod(XPU), "exclusive", "xpu", id="another vendor's"),
        pytest.param(pod(container(gpu=1)), "native", "nvidia", id="left to kube-scheduler"),
        pytest.param(pod(container(gpu=1), runtimeClassName=None), "exclusive", "nvidia", id="null is unset"),
        pytest.param(pod(container(gpu=1), runtimeClassName="kata"), "exclusive", "kata", id="the user's own"),
        pytest.param(pod(container(gpu=1), runtimeClassName=""), "exclusive", "", id="the default runtime, by name"),
        pytest.param(
            pod(container(gpu=1), XPU, runtimeClassName="x"), "exclusive", "x", id="two vendors, one of the user"
        ),
        pytest.param(pod(container()), "exclusive", None, id="no device"),
        pytest.param(pod(container(gpu=0)), "exclusive", None, id="a count of zero"),
        pytest.param(pod(container(gpu=1), labels={"hami.io/webhook": "ignore"}), "exclusive", None, id="it opted out"),
    ],
)
def test_the_runtime_class_is_set_as_hami_does(raw, mode, expected):
    made = convert_pod(raw, "team", Options(mode=mode, runtime_classes=BY_VENDOR)).pod
    assert made["spec"].get("runtimeClassName") == expected


def test_without_a_configured_name_no_runtime_class_is_set():
    for configured in ({}, {"kunlunxin": "xpu"}, {"nvidia": ""}):
        made = converted(container(gpu=1), options=Options(runtime_classes=configured))
        assert "runtimeClassName" not in made.pod["spec"]


def test_a_pod_that_hami_dra_convert_made_gets_it_from_the_webhook():
    before = converted(container(gpu=1)).pod
    assert convert_pod(before, "team", Options(runtime_classes=BY_VENDOR)).pod["spec"]["runtimeClassName"] == "nvidia"


def test_two_vendors_with_different_runtime_classes_are_refused():
    with pytest.raises(ConversionRefused, match=r"differ \(xpu for kunlunxin, nvidia for nvidia\), and a pod has one"):
        converted(container(gpu=1), XPU, options=Options(runtime_classes=BY_VENDOR))
    same = Options(runtime_classes={"nvidia": "gpu", "kunlunxin": "gpu"})
    assert converted(container(gpu=1), XPU, options=same).pod["spec"]["runtimeClassName"] == "gpu"


# --- by the webhook: a claim of this pod alone ---------------------------------------------------------------------------


def claim_named(conversion):
    (entry,) = conversion.pod["spec"]["resourceClaims"]
    assert set(entry) == {"name", "resourceClaimName"}
    assert conversion.templates == []
    return entry["resourceClaimName"]


def test_the_webhook_names_a_claim_for_each_pod():
    raw = pod(container(gpu=1, gpumem=100))
    made = [claim_named(convert_pod(raw, "team", unique=str(number))) for number in range(100)]
    assert len(set(made)) == 100
    assert all(re.fullmatch(r"web-hami-[0-9a-f]{18}", name) for name in made)
    assert len({name[:-10] for name in made}) == 1, "what is asked for, then chance"


@pytest.mark.parametrize("name", ["w" * 253, "a.b-", "-" * 39 + "x", ""], ids=len)
def test_the_name_of_a_claim_is_one_whatever_the_name_of_the_pod(name):
    raw = pod(container(gpu=1))
    raw["metadata"] = {"generateName": name}
    assert re.fullmatch(
        r"([a-z0-9][a-z0-9.-]{0,38}-)?hami-[0-9a-f]{18}", claim_named(convert_pod(raw, "team", unique="1"))
    )


def test_a_copy_of_a_converted_pod_gets_a_claim_of_its_own():
    first = convert_pod(pod(container(gpu=1)), "team", unique="1")
    copy = convert_pod(first.pod, "team", unique="2")
    assert claim_named(copy) != claim_named(first)
    assert copy.pod["spec"]["containers"] == first.pod["spec"]["containers"]
    assert copy.request == first.request


def test_a_container_injected_after_the_conversion_changes_the_claim_that_is_named():
    first = convert_pod(pod(container("app", gpu=1, gpumem=100)), "team", unique="1")
    injected = deepcopy(first.pod)
    injected["spec"]["containers"].append(container("extra", gpu=1, gpumem=50))
    second = convert_pod(injected, "team", unique="1")
    assert pointers(second) == {"app": ["nvidia-0"], "extra": ["nvidia-1"]}
    assert claim_named(second) != claim_named(first)


def test_a_pod_converted_in_a_file_keeps_its_template():
    in_file = convert_pod(pod(container(gpu=1)), "team")
    assert convert_pod(in_file.pod, "team", unique="1").pod == in_file.pod
