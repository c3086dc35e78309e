"""MetaX's rules as such: the QoS table, the kinds of requests, Final and its parts against slow sums over pairs."""

from itertools import combinations, product

import numpy as np
import pytest

from hami_dra.topology.zones import decision_tree, zones_of
from hami_dra.vendors.device_codes import CODES
from hami_dra.vendors.metax.preferences import (
    ANNOTATIONS,
    PENALTY,
    QOS,
    QOS_POLICIES,
    SPREAD_TOPOLOGY,
    TOPOLOGY_AWARE,
    MetaxPreferences,
)
from hami_dra.vendors.metax.rules import Metax, mark_of
from hami_dra.vendors.preferences import CardLists, InvalidPreference
from hami_dra.vendors.protocol import CardRequest, Cards, CardState, Layout, NodeView

METAX = Metax()
FREE = CardState.ELIGIBLE | CardState.IDLE
ALL_FREE = (FREE,) * 8
TWO_ZONES = (1, 1, 1, 1, 2, 2, 2, 2)
WHOLE, EXCLUSIVE, SHARED = "whole", "exclusive", "shared"
FULL = 64 << 30
NO_LANES, ALONE = ((0,) * 8,) * 8, ("0" * 8,) * 8


def preferences(**annotations):
    names = {"qos": QOS, "aware": TOPOLOGY_AWARE, "spread": SPREAD_TOPOLOGY}
    return METAX.preferences({names[key]: value for key, value in annotations.items()})


# --- what a card refuses -------------------------------------------------------------------------------------------------


def refusal(*, qos, used, cores, card_qos, used_cores=None):
    used_cores = used * 20 if used_cores is None else used_cores
    mark = mark_of(card_qos) if card_qos else 0
    columns = [0, 0, 10, used, 100, used_cores, FULL, used << 30, mark]
    cards = Cards(*(np.array([value], dtype=np.int64) for value in columns))
    ask = CardRequest(*(np.array([value], dtype=np.int64) for value in (1, cores, 1 << 30)))
    (code,) = METAX.refuse(cards, ask, preferences(qos=qos)).tolist()
    return CODES[code]


@pytest.mark.parametrize(("qos", "card_qos"), list(product(QOS_POLICIES, ("", *QOS_POLICIES))))
@pytest.mark.parametrize("cores", [0, 1, 60, 99, 100])
@pytest.mark.parametrize("used", [0, 1, 3])
def test_the_whole_truth_table_of_qos(used, cores, card_qos, qos):
    """HAMi D/metax/sdevice.go, checkDeviceQos: its rows in its order."""
    if used == 0:
        expected = ""
    elif cores == 100:
        expected = "ExclusiveDeviceAllocateConflict"  # lets it pass; the exclusive rule does not
    elif card_qos in ("", qos):
        expected = ""
    else:
        expected = "CardQosPolicyMismatch"
    assert refusal(qos=qos, used=used, cores=cores, card_qos=card_qos) == expected


def test_cores_of_none_do_not_join_a_full_card_and_qos_is_looked_at_first():
    full = {"used": 2, "used_cores": 100, "cores": 0}
    assert refusal(qos="fixed-share", card_qos="fixed-share", **full) == "CardComputeUnitsExhausted"
    assert refusal(qos="fixed-share", card_qos="best-effort", **full) == "CardQosPolicyMismatch"


def test_a_tenant_marks_its_card_unless_it_has_all_cores():
    part, everything = {"cores": 60, "memory": 4 << 30, "shares": 1}, {"cores": 100, "memory": 4 << 30, "shares": 1}
    marks = [METAX.mark(METAX.allocation_parameters(preferences(qos=qos)), part) for qos in QOS_POLICIES]
    assert sorted(set(marks)) == marks == [1, 2, 3]
    assert METAX.mark(METAX.allocation_parameters(preferences(qos="fixed-share")), everything) == 0
    assert (
        METAX.mark(METAX.allocation_parameters(preferences(qos="fixed-share")), {}) == 0
    )  # a device that cannot be shared
    assert METAX.mark({}, part) == mark_of("best-effort")
    assert METAX.mark({"qos": "gold"}, part) == 0  # somebody else's words


def test_wishes():
    assert preferences() == MetaxPreferences(CardLists(), "best-effort", topology_aware=True, penalty=False)
    assert preferences(qos="burst-share", aware="false", spread=PENALTY) == MetaxPreferences(
        CardLists(), "burst-share", topology_aware=False, penalty=True
    )
    lists = METAX.preferences({"metax-tech.com/use-gpuuuid": "a, b", "metax-tech.com/nouse-gpuuuid": "c"}).lists
    assert lists == CardLists(frozenset("ab"), frozenset("c"))
    assert METAX.ids("node-1", 3) == ("node-1-metax-3",)
    assert set(METAX.parameters.values()) <= ANNOTATIONS


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"qos": "gold"}, "metax-tech.com/sgpu-qos-policy must be set one of [best-effort, fixed-share, burst-share]"),
        ({"qos": ""}, "must be set one of"),
        ({"qos": "Best-Effort"}, "must be set one of"),
        ({"aware": "yes"}, "'yes' is neither true nor false"),
        ({"spread": "avoid"}, "is not one of prefer, penalty"),
    ],
)
def test_what_is_no_wish_says_so(said, words):
    with pytest.raises(InvalidPreference) as error:
        preferences(**said)
    assert words in str(error.value)


# --- sets of cards --------------------------------------------------------------------------------------------------------


def layout(group):
    return Layout(
        index=tuple(range(len(group))),
        group=tuple(group),
        numa=(0,) * len(group),
        product=("MetaX C500",) * len(group),
        lanes=((0,) * len(group),) * len(group),
        distance=("0" * len(group),) * len(group),
    )


def node_view(kind, count, group=TWO_ZONES, card_states=ALL_FREE, policy="binpack", **said):
    return NodeView(
        layout=layout(group),
        card_states=bytes(card_states),
        states=bytes([kind != SHARED] * len(group)),
        count=count,
        preferences=preferences(**said),
        node_policy=policy,
        device_keys=("spread",),
        plain=kind == WHOLE,
    )


def tiers(*arguments, **more):
    return list(METAX.arrange(node_view(*arguments, **more)).tiers)


def sets_of(tier, count):
    pools = (combinations([card for card in range(8) if pool >> card & 1], count) for pool in tier.pools)
    return [*tier.sets, *(sum(1 << card for card in cards) for pool in pools for cards in pool)]


@pytest.mark.parametrize(
    ("group", "count", "final"),
    [
        ((1, 1, 1, 1), 2, 60),
        ((1, 1, 1, 1), 1, -30),
        ((1,), 1, 0),
        ((1, 1, 1, 1), 4, 600),
        (TWO_ZONES, 8, 1200),
        ((0, 0), 1, 0),
        ((0, 0), 2, 0),
    ],
)
@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_final_of_the_worked_examples(group, count, final, policy):
    first, *_ = tiers(EXCLUSIVE, count, group, (FREE,) * len(group), policy)
    assert (first.score, first.tie) == (final, 0.0)


def slow_sum(group, cards):
    return sum(10 for a, b in combinations(sorted(cards), 2) if group[a] == group[b] > 0)


def slow_parts(group, free, chosen):
    """(allocated, loss, Final), pair by pair."""
    allocated = slow_sum(group, chosen)
    loss = slow_sum(group, free) - allocated - slow_sum(group, set(free) - set(chosen))
    return allocated, loss, 10 * allocated - loss


SHAPES = [
    (1,) * 8,
    TWO_ZONES,
    (1, 1, 2, 2, 3, 3, 4, 4),
    (1, 1, 1, 1, 1, 2, 2, 0),
    (1, 1, 1, 2, 2, 0, 0, 0),
    (3, 1, 2, 1, 2, 3, 0, 0),
    (0,) * 8,
]


@pytest.mark.parametrize("group", SHAPES)
@pytest.mark.parametrize("kind", [WHOLE, EXCLUSIVE, SHARED])
def test_scores_of_every_busy_pattern(kind, group):
    for pattern in range(256):
        free = {card for card in range(8) if pattern >> card & 1}
        card_states = [FREE if card in free else 0 for card in range(8)]
        for count in range(2, len(free) + 1):
            for policy in ("binpack", "spread"):
                first = next(iter(METAX.arrange(node_view(kind, count, group, card_states, policy)).tiers))
                for each in sets_of(first, count)[:6]:
                    allocated, loss, final = slow_parts(group, free, {card for card in range(8) if each >> card & 1})
                    expected = {
                        (WHOLE, "binpack"): -loss + 1e-6 * allocated,
                        (WHOLE, "spread"): allocated,
                        (EXCLUSIVE, "binpack"): final,
                        (EXCLUSIVE, "spread"): final,
                        (SHARED, "binpack"): allocated,
                        (SHARED, "spread"): allocated,
                    }[kind, policy]
                    assert first.score == pytest.approx(expected)


@pytest.mark.parametrize("group", SHAPES)
@pytest.mark.parametrize("kind", [WHOLE, EXCLUSIVE, SHARED])
def test_every_set_appears_once_and_the_rest_with_the_best_connected_first(kind, group):
    for free in ({0, 1, 2, 3, 4, 5, 6, 7}, {0, 2, 3, 5, 6, 7}, {1, 4, 7}):
        card_states = [FREE if card in free else 0 for card in range(8)]
        for count in range(2, len(free) + 1):
            by_tier = [sets_of(tier, count) for tier in tiers(kind, count, group, card_states)]
            found = [each for sets in by_tier for each in sets]
            assert sorted(found) == sorted(sum(1 << card for card in cards) for cards in combinations(free, count))
            mask = sum(1 << card for card in free)
            named = len(list(decision_tree(zones_of(group, NO_LANES, ALONE), mask, count)))
            rest = [each for sets in by_tier[named:] for each in sets]
            points = [slow_sum(group, {card for card in range(8) if each >> card & 1}) for each in rest]
            assert points == sorted(points, reverse=True)


def test_cards_of_which_a_part_is_taken_are_no_loss_and_no_choice_of_exclusive_requests():
    card_states = [CardState.ELIGIBLE, CardState.ELIGIBLE, FREE, FREE, 0, 0, 0, 0]
    assert [tier.score for tier in tiers(SHARED, 2, card_states=card_states)] == [10.0]
    (only,) = tiers(EXCLUSIVE, 2, card_states=card_states)
    assert (only.pools, only.score) == ((0b1100,), 100.0)


def test_requests_of_one_pod_add_up_to_the_cards_of_the_pod():
    """Two requests for two cards are as one for four: 600, not twice 60."""
    first, *_ = tiers(EXCLUSIVE, 2)
    own = CardState.OWN | CardState.ELIGIBLE
    second, *_ = tiers(EXCLUSIVE, 2, card_states=[own, own, *(FREE,) * 6])
    assert first.score + second.score == slow_parts(TWO_ZONES, set(range(8)), {0, 1, 2, 3})[2] == 600


def test_one_part_of_one_card_is_no_matter_of_topology():
    assert METAX.arrange(node_view(SHARED, 1)) is None
    assert METAX.arrange(node_view(EXCLUSIVE, 1)) is not None


@pytest.mark.parametrize(("kind", "score"), [(WHOLE, -40 + 1e-5), (EXCLUSIVE, 0.0), (SHARED, 0.0)])
def test_the_switch_is_for_sgpus_and_for_nodes_only(kind, score):
    first, *_ = tiers(kind, 2, aware="false")
    assert first.score == pytest.approx(score)
    assert first.pools == (0b1111,)


@pytest.mark.parametrize(("kind", "tie"), [(WHOLE, -10.0), (EXCLUSIVE, -60.0), (SHARED, -10.0)])
def test_the_penalty_leaves_nodes_to_their_idleness_and_then_takes_the_worse(kind, tie):
    first, *_ = tiers(kind, 2, policy="spread", spread="penalty")
    assert (first.score, first.tie) == (0.0, tie)
    packed, *_ = tiers(kind, 2, policy="binpack", spread="penalty")
    assert packed == tiers(kind, 2, policy="binpack")[0]


def test_of_very_many_cards_the_tree_comes_first_and_then_any():
    group = [card // 16 for card in range(64)]  # 0 to 15 in no zone
    found = tiers(EXCLUSIVE, 20, group, (FREE,) * 64)
    assert [len(found), found[0].sets[0].bit_count(), found[-1].pools] == [2, 20, ((1 << 64) - 1,)]
    assert found[0].score > found[-1].score
