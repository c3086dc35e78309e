"""What holds for the edits of every container: cards keep their order, no limit is lost, whole cards have none."""

import re

from hypothesis import given
from hypothesis import strategies as st

from hami_dra.api.containers import Unpreparable
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.registry import containers
from tests.support.containers import MIB, PretendHost, card, place, tenancy

HOST = PretendHost("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/ld.so.preload", nodes_required=False)

amounts = st.fixed_dictionaries(
    {"memory": st.integers(MIB, 80_000 * MIB), "cores": st.integers(0, 100), "shares": st.just(1)}
)
tenancies = st.lists(
    st.builds(
        lambda index, consumed, whole, request: tenancy(card(index), consumed, whole=whole, request=request),
        st.integers(0, 15),
        amounts,
        st.booleans(),
        st.sampled_from(("a", "b", "c")),
    ),
    min_size=1,
    max_size=12,
)


@given(tenancies, st.randoms(use_true_random=False))
def test_limits_follow_the_cards_whatever_the_order_of_the_results(held, random):
    edits = containers("nvidia").edits(held, place(), HOST)
    mixed = list(held)
    random.shuffle(mixed)
    assert containers("nvidia").edits(mixed, place(), HOST) == edits

    visible = edits.env["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert visible == [f"GPU-{index}" for index in sorted({each.card.index for each in held})]
    for number, uuid in enumerate(visible):
        own = [each for each in held if each.card.uuid == uuid]
        memory = edits.env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{number}")
        fallback = edits.env.get("CUDA_DEVICE_SM_LIMIT", "0")
        cores = int(edits.env.get(f"CUDA_DEVICE_SM_LIMIT_{number}", fallback)) or 100
        if any(each.whole for each in own):
            all_of_it = max([own[0].card.memory, *(each.consumed["memory"] for each in own)])
            assert memory in (None, f"{all_of_it // MIB}m")
            assert cores == 100
        else:
            assert memory != "0m"
            assert memory == f"{sum(each.consumed['memory'] for each in own) // MIB}m"
            assert cores == (min(sum(each.consumed["cores"] for each in own), 100) or 100)
    numbered = {name for name in edits.env if re.fullmatch(r"CUDA_DEVICE_(MEMORY|SM)_LIMIT_\d+", name)}
    assert all(int(name.rpartition("_")[2]) < len(visible) for name in numbered)
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in edits.env  # it would hold for whole cards too
    # a preloaded HAMi-core reports 0 bytes for a card without a limit
    assert len(numbered & {f"CUDA_DEVICE_MEMORY_LIMIT_{number}" for number in range(16)}) in (0, len(visible))
    assert bool(edits.mounts) is bool(numbered)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_adds_a_card_or_a_variable(uuid, view):
    try:
        edits = containers("nvidia").edits([tenancy(card(0, uuid=uuid), whole=True)], place(view=view), HOST)
    except Unpreparable:
        return
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert not re.search(r"[,\s]", uuid)
    for mount in edits.mounts:
        assert ".." not in mount.host.split("/")


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30))
def test_neuron_cores_are_never_held_twice_and_always_found(total, steps):
    """Claims come and go; whatever amounts allow is found."""
    device = NeuronRecord(
        vendor="neuron", index=0, uuid="n", product="x", memory=1 << 35, cores=total, logical_cores=total
    )
    neuron = containers("neuron")
    held: list[dict[str, str]] = []
    for wanted, leaves in steps:
        if leaves and held:
            held.pop(wanted % len(held))
            continue
        taken = [core for each in held for core in each["cores"].split(",")]
        if len(taken) + wanted > total:
            continue
        assigned = dict(neuron.assign(tenancy(device, {"neuroncores": wanted}), held))
        cores = assigned["cores"].split(",")
        assert len(set(cores)) == wanted
        assert not set(cores) & set(taken)
        assert all(0 <= int(core) < total for core in cores)
        held.append(assigned)
