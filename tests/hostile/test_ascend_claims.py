"""What a tenant writes of a claim or a pod chooses nothing of Ascend's runtime: neither its template nor its variables."""

from hypothesis import given
from hypothesis import strategies as st

from hami_dra.driver.simulated import machine
from hami_dra.vendors.registry import containers
from tests.support.containers import PretendHost, place, tenancy

(CARD, *_) = machine("atlas-800t-a2", "n").cards
TEMPLATES = ("vir05_1c_8g", "vir10_3c_16g")
HOST = PretendHost(("/dev/davinci0",))

texts = st.text(max_size=300) | st.sampled_from(
    ["vir10_3c_16g", "0,1,2,3", "1\nASCEND_VNPU_SPECS=vir20", "all", "$(id)", "../../dev/davinci1"]
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "memory_percent": st.integers(1, 100),
        "priority": st.integers(0, 1),
        "core_policy": st.sampled_from(["default", "force", "disable"]),
        "qos": st.sampled_from(["best-effort", "fixed-share", "burst-share"]),
        "app_class": st.sampled_from(["online", "offline"]),
        "limits": st.sampled_from(["optional", "enforced"]),
    },
)
variables = st.dictionaries(
    st.sampled_from(
        ["ASCEND_VNPU_SPECS", "ASCEND_VISIBLE_DEVICES", "ASCEND_RUNTIME_OPTIONS", "ASCEND_RT_VISIBLE_DEVICES"]
    )
    | texts,
    texts,
    max_size=4,
)


@given(
    template=st.sampled_from(TEMPLATES),
    config=configs,
    consumed=st.dictionaries(st.sampled_from(["memory", "cores", "aicpu"]) | texts, st.integers(0, 2**63), max_size=4),
    request=texts,
    own=variables,
    classes=st.frozensets(texts, max_size=3),
)
def test_template_and_variables_are_those_of_the_device_whatever_the_claim_says(
    *, template, config, consumed, request, own, classes
):
    def edits(held, **where):
        return containers("ascend").edits([held], place(**where), HOST)

    device = f"npu-{CARD.index}-{template.replace('_', '-')}-0"
    hostile = tenancy(CARD, consumed, whole=True, request=request, config=config, device=device, profile=template)
    found = edits(hostile, container_env=own, runtime_classes=classes)
    plain = edits(tenancy(CARD, whole=True, device=device, profile=template))
    assert found.env == plain.env == {"ASCEND_VISIBLE_DEVICES": str(CARD.index), "ASCEND_VNPU_SPECS": template}
    assert (found.device_nodes, found.mounts) == (plain.device_nodes, plain.mounts) == ((), ())
