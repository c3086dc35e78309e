"""Quotas while cards are chosen: HAMi's examples with their counts, all kinds of requests, several quotas, several requests."""

import pytest

from tests.support import manifests
from tests.support.manifests import simulated
from tests.support.quotas import CLASSES, devices_of, legacy, nvidia_node, quota, reasons_of

SIZES = (2000, 4000, 6000, 8000)
NOT_FIT = "ResourceQuotaNotFit"


def run(hard, *pods, sizes=SIZES, more=(), **settings):
    return simulated(*CLASSES, *nvidia_node("n1", sizes), quota(hard), *more, *pods, **settings)


# -- HAMi's own examples (pkg/device/nvidia/device_test.go, docs of the extended ResourceQuota) ------------------------


def test_a_card_too_big_for_the_quota_is_skipped_and_a_smaller_one_taken():
    report = run({"nvidia.com/gpumem": 2000}, legacy("p", gpu=1))
    assert devices_of(report) == {"default/p": ["gpu-0"]}


def test_no_card_is_small_enough_for_the_quota():
    report = run({"nvidia.com/gpumem": 1500}, legacy("p", gpu=1))
    assert reasons_of(report) == {"default/p": {NOT_FIT: 4}}
    assert report.unplaced[0]["message"] == (
        "no node fits: needs 2000 MiB of nvidia.com/gpumem; "
        "ResourceQuota default/quota allows 1500 MiB of limits.nvidia.com/gpumem, of which 0 are used. "
        "Ask for less, or have the quota raised"
    )


def test_a_quota_of_one_card_is_one_card():
    report = run({"nvidia.com/gpu": 1}, legacy("a", gpu=1), legacy("b", gpu=1))
    assert report.unplaced[0]["message"] == (
        "no node fits now: needs 1 device of nvidia.com/gpu; "
        "ResourceQuota default/quota allows 1 device of limits.nvidia.com/gpu, of which 1 is used"
    )


def test_quota_comes_before_memory_in_the_order_of_reasons():
    report = run({"nvidia.com/gpumem": 4000}, legacy("p", gpu=2, gpumem=3000))
    assert reasons_of(report) == {"default/p": {"AllocatedCardsInsufficientRequest": 1, NOT_FIT: 3}}


def test_memory_counts_once_for_each_card():
    report = run({"nvidia.com/gpumem": 4000}, legacy("a", gpu=2, gpumem=2000), legacy("b", gpu=1, gpumem=1))
    assert list(devices_of(report)) == ["default/a"]
    assert reasons_of(report) == {"default/b": {NOT_FIT: 4}}


def test_percent_is_resolved_on_the_card():
    half = legacy("p", gpu=1, percent=50)
    assert reasons_of(run({"nvidia.com/gpumem": 12287}, half, sizes=[24576])) == {"default/p": {NOT_FIT: 1}}
    report = run({"nvidia.com/gpumem": 12288}, half, sizes=[24576])
    assert devices_of(report) == {"default/p": ["gpu-0"]}


def test_percent_takes_the_card_of_which_it_is_little_enough():
    report = run({"nvidia.com/gpumem": 2000}, legacy("p", gpu=1, percent=50))
    (device,) = devices_of(report)["default/p"]
    assert device in {"gpu-0", "gpu-1"}


# -- what counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hard", "pods", "placed"),
    [
        ({"nvidia.com/gpu": 2}, [legacy(f"p{n}", gpu=1, gpumem=100) for n in range(3)], 2),
        ({"nvidia.com/gpu": 2}, [legacy("p0", gpu=2), legacy("p1", gpu=1)], 1),
        ({"nvidia.com/gpucores": 60}, [legacy(f"p{n}", gpu=1, gpumem=100, gpucores=30) for n in range(3)], 2),
        ({"nvidia.com/gpucores": 100}, [legacy(f"p{n}", gpu=1) for n in range(2)], 1),  # a whole card is 100 cores
        ({"nvidia.com/gpucores": 0}, [legacy("p0", gpu=1, gpumem=100)], 1),  # no cores are asked for
        ({"nvidia.com/gpumem": 0}, [legacy("p0", gpu=1, gpumem=100)], 0),  # 0 is a limit, not the lack of one
        ({"nvidia.com/gpu": 0}, [legacy("p0", gpu=1)], 0),
        ({"volcano.sh/vgpu-memory": 150}, [legacy(f"p{n}", gpu=1, gpumem=100) for n in range(2)], 1),
        ({"nvidia.com/gpumem": "1Gi"}, [legacy(f"p{n}", gpu=1, gpumem=512) for n in range(3)], 2),
        ({"nvidia.com/gpumem": "1k"}, [legacy(f"p{n}", gpu=1, gpumem=500) for n in range(3)], 2),
        ({"metax-tech.com/sgpu": 0}, [legacy("p0", gpu=1)], 1),  # another vendor's
        ({"nvidia.com/priority": 0}, [legacy("p0", gpu=1)], 1),  # counts nothing
    ],
)
def test_what_a_quota_counts(hard, pods, placed):
    assert len(run(hard, *pods).placements) == placed


def test_claims_written_by_hand_count_the_same():
    claim = manifests.claim("mine", manifests.part("3000Mi"))
    report = run({"nvidia.com/gpumem": 4000}, claim, manifests.pod("a", "mine"), legacy("b", gpu=1, gpumem=1500))
    assert list(devices_of(report)) == ["default/a"]
    assert reasons_of(report) == {"default/b": {NOT_FIT: 4}}


def test_a_claim_that_pods_share_counts_once():
    claim = manifests.claim("mine", manifests.part("3000Mi"))
    pods = [manifests.pod("a", "mine"), manifests.pod("b", "mine"), legacy("c", gpu=1, gpumem=1000)]
    assert len(run({"nvidia.com/gpumem": 4000}, claim, *pods).placements) == 3


def test_another_namespace_is_not_limited():
    pods = [legacy(f"p{n}", gpu=1, gpumem=500, namespace="other") for n in range(3)]
    assert len(run({"nvidia.com/gpumem": 100}, *pods).placements) == 3


def test_admin_access_uses_nothing():
    watching = manifests.part("2000Mi")
    watching["exactly"]["adminAccess"] = True
    del watching["exactly"]["capacity"]
    claim = manifests.claim("watch", watching)
    report = run({"nvidia.com/gpu": 1}, claim, manifests.pod("a", "watch"), legacy("b", gpu=1))
    assert len(report.placements) == 2


def test_all_quotas_of_a_namespace_hold():
    small = quota({"nvidia.com/gpumem": 1000}, name="small")
    pods = [legacy(f"p{n}", gpu=1, gpumem=600) for n in range(2)]
    report = run({"nvidia.com/gpumem": 9000, "nvidia.com/gpu": 5}, *pods, more=[small])
    assert len(report.placements) == 1
    assert "limits.nvidia.com/gpu:" not in report.unplaced[0]["message"]  # that one would allow it
    assert (
        "ResourceQuota default/small allows 1000 MiB of limits.nvidia.com/gpumem, of which 600 are used"
        in report.unplaced[0]["message"]
    )


def test_a_quota_with_scopes_is_not_enforced():
    scoped = quota({"nvidia.com/gpumem": 0}, name="scoped", scopes=["NotTerminating"])
    report = run({"nvidia.com/gpumem": 9000}, legacy("p", gpu=1, gpumem=100), more=[scoped])
    assert len(report.placements) == 1


def test_first_fit_is_upstreams_and_knows_no_quota():
    assert len(run({"nvidia.com/gpumem": 0}, legacy("p", gpu=1), first_fit=True).placements) == 1


# -- the search --------------------------------------------------------------------------------------------------------


def test_a_request_for_several_cards_finds_those_that_together_are_small_enough():
    assert sorted(devices_of(run({"nvidia.com/gpumem": 6000}, legacy("p", gpu=2)))["default/p"]) == ["gpu-0", "gpu-1"]


def test_two_requests_of_one_pod_are_held_against_the_quota_together():
    claims = [manifests.claim("a", manifests.part("3000Mi")), manifests.claim("b", manifests.part("3000Mi"))]
    pod = manifests.pod("p", "a", "b")
    assert len(run({"nvidia.com/gpumem": 6000}, *claims, pod).placements) == 1
    report = run({"nvidia.com/gpumem": 5999}, *claims, pod)
    assert reasons_of(report) == {"default/p": {NOT_FIT: 4}}


def test_the_search_turns_round_where_the_first_card_leaves_too_little_for_the_next():
    """One request for a whole card and one for 2,000 MiB: of the idle cards only the smallest leaves room for the other."""
    both = [
        {"name": "whole", "exactly": {"deviceClassName": "vgpu"}},
        {
            "name": "part",
            "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "2000Mi", "cores": "0"}}},
        },
    ]
    report = run({"nvidia.com/gpumem": 4000}, manifests.claim("mine", *both), manifests.pod("p", "mine"))
    assert devices_of(report)["default/p"][0] == "gpu-0"


def test_an_alternative_within_the_quota_is_taken():
    choice = {
        "name": "gpu",
        "firstAvailable": [
            {"name": name, "deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "0"}}}
            for name, memory in (("much", "3000Mi"), ("less", "1000Mi"))
        ],
    }
    report = run({"nvidia.com/gpumem": 1500}, manifests.claim("mine", choice), manifests.pod("p", "mine"))
    (result,) = report.placements[0]["claims"][0]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/less"


def test_all_devices_are_too_many():
    every = {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "allocationMode": "All"}}
    claim, pod = manifests.claim("mine", every), manifests.pod("p", "mine")
    assert len(run({"nvidia.com/gpumem": 20000}, claim, pod).placements) == 1
    report = run({"nvidia.com/gpumem": 19999}, claim, pod)
    assert reasons_of(report) == {"default/p": {"AllocatedCardsInsufficientRequest": 3, NOT_FIT: 1}}


def test_a_full_namespace_is_refused_on_every_node_without_a_search():
    nodes = [raw for name in ("a", "b", "c") for raw in nvidia_node(name, SIZES)]
    report = run({"nvidia.com/gpumem": 1000}, legacy("p", gpu=1), legacy("q", gpu=1, gpumem=800), more=nodes)
    assert list(devices_of(report)) == ["default/q"]
    assert reasons_of(report) == {"default/p": {NOT_FIT: 16}}


def test_other_reasons_come_before_the_quota():
    pod = legacy("p", gpu=1, annotations={"nvidia.com/nouse-gpuuuid": "GPU-0,GPU-1"})
    report = run({"nvidia.com/gpumem": 1500}, pod)
    assert reasons_of(report) == {"default/p": {"CardUuidMismatch": 2, NOT_FIT: 2}}


def test_it_is_the_second_request_that_is_refused():
    """The first request finds its card; of the second every card is over what is left."""
    claims = [manifests.claim("a", manifests.part("1000Mi")), manifests.claim("b", manifests.part("3000Mi", count=2))]
    report = run({"nvidia.com/gpumem": 5000}, *claims, manifests.pod("p", "a", "b"))
    assert reasons_of(report) == {"default/p": {"AllocatedCardsInsufficientRequest": 1, NOT_FIT: 3}}
