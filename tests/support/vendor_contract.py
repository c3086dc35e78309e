"""What every vendor promises, as one suite: see docs/design/adding-a-vendor.md.

A test module subclasses `VendorContract` and gives it the fixture `plugin`. Used for the vendors of the registry and for the
sixth one by `tests/unit/vendors/test_vendor_contract.py`.
"""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.hardware import Card, Machine
from hami_dra.api.heldclaims import MOST_LENGTH, HeldClaim, HeldDevice, decode, encode
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.driver.limits import check_pools
from hami_dra.driver.simulated import machine, machine_names
from hami_dra.driver.slices import pool_of, slice_bodies
from hami_dra.vendors.device_codes import CODES
from hami_dra.vendors.legacy import ContainerResources, InvalidLegacy, LegacyRequest
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.protocol import CardRequest, Cards, CardState, Layout, NodeView
from tests.support.examples import examples
from tests.support.looks_at_cards import trouble_with_a_present_card
from tests.support.pretended_cards import COUNT, pretended_machine
from tests.support.settings import vendor_settings
from tests.support.slice_limits import check_slice

MIB = 1 << 20
GIB = 1 << 30
MOST_SETS = 200
"""Of one answer of `arrange` that are looked at."""

amounts = st.one_of(st.integers(-1, 200), st.sampled_from(["0", "1", "100", "4k", "16Gi", "0.5", "x", "", "1e3", None]))
annotations = st.one_of(st.sampled_from(["", "true", "A100,!T4", "-,-", "GPU-0", "numa", "ü"]), st.text(max_size=20))


def reference_machines(vendor):
    """Every reference machine that has cards of the vendor; one of plain cards where none has."""
    found = [machine(name, "n") for name in machine_names()]
    found = [each for each in found if any(card.vendor == vendor for card in each.cards)]
    return found or [Machine(name="n", instance_type="any", cpu=1, memory=1, cards=plain_cards(vendor))]


def plain_cards(vendor, count=4):
    return tuple(
        Card(vendor=vendor, index=index, uuid=f"{vendor}-{index}", product="One", memory=32 * GIB)
        for index in range(count)
    )


def columns(dice, count):
    """Cards in any state that memory, cores and slots allow."""

    def some(most):
        return np.array([dice.randint(0, most) for _ in range(count)], dtype=np.int64)

    memory = np.full(count, 32 * GIB)
    return Cards(
        index=np.arange(count),
        numa=np.arange(count) // 4,
        slots_total=np.full(count, 10),
        slots_used=some(10),
        cores_total=np.full(count, 100),
        cores_used=some(100),
        memory_total=memory,
        memory_used=some(32) * GIB,
        mark=some(2),
    )


def some_limits(dice, legacy):
    """Limits of a container for one kind of card, mostly ones that are accepted."""
    base = dice.choice(legacy.plugin_resources or legacy.resources)
    near = [name for name in legacy.resources if name.startswith(base) or len(legacy.resources) < 9]
    chosen = {base, *dice.sample(near, min(len(near), dice.randint(0, 2)))}
    return {name: dice.choice(_usual(name)) for name in chosen}


def _usual(name):
    if "percent" in name.lower():
        return [1, 25, 50, 100]
    if "mem" in name.lower():
        return [0, 1, 4, 1000, 2000, 8192, 10000, 16384, 24576, 32768]
    return [0, 1, 2, 4, 10, 50, 100] if "core" in name.lower() else [1, 2, 4]


def uncovered(joined, own, legacy):
    """Why a container that asked for `own` has less with `joined`; empty if it has all of it."""
    if (joined.count, joined.model) != (max(joined.count, own.count), own.model):
        return "cards"
    if joined.partition != own.partition or (own.partition and joined.capacity != own.capacity):
        return "a partition"
    if joined.exact and legacy.is_plain(own) and legacy.device_class(joined) != legacy.device_class(own):
        return "a whole card"
    for name, amount in joined.capacity.items():
        if amount < own.capacity.get(name, amount if joined.exact else 1 << 62):
            return name
    percent = own.memory_percent or (100 if own.takes_all_memory else 0)
    if joined.memory_percent is not None and joined.memory_percent < percent:
        return "percent of the memory"
    return "priority" if own.priority is not None and joined.priority > own.priority else ""


def wanted(dice, count):
    """The same amounts of every card."""
    memory, cores = dice.choice([0, 4, 8, 16, 32]) * GIB, dice.choice([0, 10, 25, 50, 100])
    return CardRequest(slots=np.ones(count, np.int64), cores=np.full(count, cores), memory=np.full(count, memory))


class VendorContract:
    def test_its_parts_are_of_one_vendor(self, plugin):
        assert plugin.backend(None).vendor == plugin.name
        assert plugin.publishing.driver == plugin.containers.driver == plugin.legacy.driver == plugin.driver
        assert set(plugin.legacy.plugin_resources) <= set(plugin.legacy.resources)

    def test_a_machine_without_its_tools_is_an_error_that_says_so(self, plugin, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        backend = plugin.backend(tmp_path)
        with pytest.raises(DiscoveryError):
            assert backend.discover().cards
        backend.close()
        backend.close()

    @settings(max_examples=examples(8), deadline=None)
    @given(
        stuck=st.tuples(st.sampled_from(["less", "gap", "cut"]), st.integers(0, 2), st.integers(0, COUNT - 1)),
        restarts=st.booleans(),
        seed=st.integers(0, 1 << 32),
    )
    def test_a_present_card_is_never_lost(self, plugin, stuck, restarts, seed):
        """Whatever one of its listings leaves out for good, or where it breaks off with exit code 0, while another one shows the
        card. Not for a vendor with one listing, which no pretended machine prints.
        """
        machine = pretended_machine(plugin.name, seed)
        assert machine is None or trouble_with_a_present_card(machine, stuck, restarts=restarts) == []

    @given(dice=st.randoms(use_true_random=False))
    def test_refusals_are_known_reasons_card_by_card(self, plugin, dice):
        """A rule only refuses, and what it says of a card does not depend on the others."""
        count = dice.randint(1, 16)
        cards, ask = columns(dice, count), wanted(dice, count)
        preferences = plugin.rules.preferences({})
        codes = plugin.rules.refuse(cards, ask, preferences)
        assert codes.shape == (count,)
        assert set(codes.tolist()) <= set(range(len(CODES)))
        some = np.array(dice.sample(range(count), dice.randint(1, count)))
        assert plugin.rules.refuse(cards.take(some), ask.take(some), preferences).tolist() == codes[some].tolist()

    @given(dice=st.randoms(use_true_random=False))
    def test_arranged_sets_are_legal(self, plugin, dice):
        """Each set has `count` cards, each pool at least so many, all of them eligible."""
        size = dice.choice([2, 4, 8])
        count = dice.randint(1, size)
        cards, ask = columns(dice, size), wanted(dice, size)
        links = dice.choice([0, 1, 2])
        layout = Layout(
            index=tuple(range(size)),
            group=(1,) * size,
            numa=tuple(number // 4 for number in range(size)),
            product=("One",) * size,
            lanes=tuple(tuple(0 if a == b else links for b in range(size)) for a in range(size)),
            distance=tuple("".join("-" if a == b else "H" for b in range(size)) for a in range(size)),
        )
        card_states = bytes(
            dice.choice(
                [0, CardState.ELIGIBLE, CardState.ELIGIBLE | CardState.IDLE, CardState.ELIGIBLE | CardState.OWN]
            )
            for _ in range(size)
        )
        node_view = NodeView(
            layout=layout,
            card_states=card_states,
            states=plugin.rules.states(cards, ask).tobytes(),
            count=count,
            preferences=plugin.rules.preferences({}),
            node_policy="binpack",
            device_keys=("binpack",),
        )
        eligible = node_view.mask(CardState.ELIGIBLE)
        found = plugin.rules.arrange(node_view)
        for tier in [] if found is None else found.tiers:
            assert tier.sets or tier.pools
            for chosen in tier.sets[:MOST_SETS]:
                assert chosen.bit_count() == count
                assert chosen & ~eligible == 0
            for pool in tier.pools[:MOST_SETS]:
                assert pool.bit_count() >= count
                assert pool & ~eligible == 0

    @given(dice=st.data())
    def test_preferences_are_read_or_refused(self, plugin, dice):
        said = {name: dice.draw(annotations) for name in sorted(plugin.rules.annotations) if dice.draw(st.booleans())}
        try:
            preferences = plugin.rules.preferences(said)
        except InvalidPreference:
            return
        assert hash(preferences) == hash(plugin.rules.preferences(said))

    @pytest.mark.parametrize(
        "sharing",
        [vendor_settings(), vendor_settings(slots=1, card_slices=1), vendor_settings(slots=100, card_slices=10)],
    )
    def test_what_it_publishes_is_within_the_limits_and_can_be_handed_out(self, plugin, sharing):
        for found in reference_machines(plugin.name):
            cards = [card for card in found.cards if card.vendor == plugin.name]
            devices = plugin.publishing.devices(cards, sharing)
            pool = pool_of(plugin.driver, "n", devices, shared_counters=plugin.publishing.counter_sets(cards))
            bodies = slice_bodies([pool])
            assert not [str(violation) for body in bodies for violation in check_slice(body)]
            assert not check_pools(bodies)
            assert set(plugin.containers.sites(cards)) == {device["name"] for device in devices}

    def test_what_a_node_holds_for_deleted_claims_can_be_told(self, plugin):
        """Of the worst case, a claim for each device with the longest names, no device is left out."""
        for found in reference_machines(plugin.name):
            cards = [card for card in found.cards if card.vendor == plugin.name]
            devices = {each["name"] for each in plugin.publishing.devices(cards, vendor_settings())}
            claims = [
                HeldClaim(uid=f"{number:036}", namespace="n" * 63, name="c" * 253, devices=(HeldDevice(device=device),))
                for number, device in enumerate(sorted(devices))
            ]
            text = encode(claims)
            assert len(text) <= MOST_LENGTH
            assert {each.device for claim in decode(text) for each in claim.devices} == devices

    @pytest.mark.parametrize("amount", ["4000m", "1000m", "2000000u", "1000000000n", "0m"])
    def test_amounts_in_thousandths_are_refused_by_every_name(self, plugin, amount):
        """`gpumem: 4000m` is 4 to Kubernetes, and to nobody else."""
        for name in plugin.legacy.resources:
            others = {other: "1" for other in plugin.legacy.resources if other != name}
            for limits in ({name: amount}, {**others, name: amount}):
                with pytest.raises(InvalidLegacy):
                    plugin.legacy.read(ContainerResources(limits, {}))

    @given(dice=st.data())
    def test_legacy_names_are_read_or_refused_and_survive_the_annotation(self, plugin, dice):
        legacy = plugin.legacy
        given_amounts = {name: dice.draw(amounts) for name in legacy.resources if dice.draw(st.booleans())}
        limits = {name: amount for name, amount in given_amounts.items() if amount is not None}
        try:
            request = legacy.read(ContainerResources(limits, {})).request
        except InvalidLegacy:
            return
        if request is None:
            return
        assert msgspec.json.decode(msgspec.json.encode(request), type=LegacyRequest) == request
        classes = {each["metadata"]["name"] for each in plugin.publishing.device_classes()}
        assert legacy.device_class(request) in classes
        assert request.joined(request) == request
        assert all(isinstance(value, str) for value in legacy.env(request).values())

    @given(dice=st.randoms(use_true_random=False))
    def test_a_joined_request_covers_both(self, plugin, dice):
        """Of containers that never run at the same time; None of a join is two requests."""
        pair = []
        for limits in (some_limits(dice, plugin.legacy), some_limits(dice, plugin.legacy)):
            try:
                pair.append(plugin.legacy.read(ContainerResources(limits, {})).request)
            except InvalidLegacy:
                return
        if None in pair or (joined := pair[0].joined(pair[1])) is None:
            return
        assert joined == pair[1].joined(pair[0])
        assert [uncovered(joined, own, plugin.legacy) for own in pair] == ["", ""]

    def test_it_refuses_filters_that_it_does_not_know(self, plugin):
        with pytest.raises(InvalidLegacy):
            plugin.legacy.selectors({"example.com/no-such": ("x",)})

    def test_its_quotas_are_of_its_names(self, plugin):
        for name in plugin.legacy.quotas.names:
            assert any(name.key.endswith(resource) for resource in plugin.legacy.resources), name.key
