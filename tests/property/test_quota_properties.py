"""Usage kept by difference is what a slow count finds; and a pod is refused for its quota only where no choice of cards would do."""

import copy
import random
from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from tests.cards import allocated, card, claim, device_class, node, pod, request, slice_of
from tests.support.assumed import assume
from tests.support.quotas import MIB, quota_object

DRIVER = "nvidia.hami.io"
SPACES = ("red", "blue", "green")
CARDS = 4


# -- the account -------------------------------------------------------------------------------------------------------


class Account:
    """A life of claims, quotas and slices, and beside the inventory what there is, plainly."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.inventory = Inventory()
        self.sizes = {}
        self.slice = None
        self.claims = {}
        self.assumed = {}
        self.quotas = {}
        self.made = 0
        self.inventory.node_changed(None, node("n1"))
        self.publish()

    def publish(self):
        self.sizes = {f"gpu-{index}": self.chance.choice((4000, 8000, 16000)) for index in range(CARDS)}
        devices = []
        for index, memory in enumerate(self.sizes.values()):
            device = card(index, memory=f"{memory}Mi")
            if index == 0:  # one that is not shared
                del device["allowMultipleAllocations"]
            devices.append(device)
        fresh = slice_of("n1", devices)
        self.inventory.slice_changed(self.slice, fresh)
        self.slice = fresh

    def results(self):
        found = []
        for device in self.chance.sample(sorted(self.sizes), self.chance.randint(0, 2)):
            result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device}
            if device != "gpu-0":
                cores = self.chance.choice(("0", "30", "100"))
                memory = f"{self.chance.choice((1, 1000, 1536))}Mi"
                result |= {
                    "shareID": f"s{self.made}",
                    "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
                }
            if self.chance.random() < 0.1:
                result["adminAccess"] = True
            found.append(result)
        return found

    def step(self):
        doing = self.chance.choice(
            ("claim", "claim", "claim", "assume", "forget", "gone", "quota", "quota", "publish", "again")
        )
        getattr(self, f"do_{doing}")()

    def do_claim(self):
        space, name = self.chance.choice(SPACES), f"c{self.chance.randint(0, 5)}"
        before = self.claims.get((space, name))
        self.made += 1
        uid = before.metadata.uid if before is not None and self.chance.random() < 0.6 else f"uid-{self.made}"
        fresh = claim(name, namespace=space, uid=uid)
        results = self.results()
        if results:
            fresh = allocated(fresh, {"devices": {"results": results}})
        self.inventory.claim_changed(before, fresh)
        self.claims[space, name] = fresh

    def do_assume(self):
        if self.claims:
            chosen = self.chance.choice([self.claims[key] for key in sorted(self.claims)])
            allocation = {"devices": {"results": self.results()}}
            if all(result.get("adminAccess") for result in allocation["devices"]["results"]):
                return  # what holds nothing is no assumption
            assume(self.inventory, chosen.metadata.uid, copy.deepcopy(allocation))
            self.assumed[chosen.metadata.uid] = (chosen.metadata.namespace, allocation["devices"]["results"])

    def do_forget(self):
        if self.assumed:
            uid = self.chance.choice(sorted(self.assumed))
            self.inventory.forget(uid)
            del self.assumed[uid]

    def do_gone(self):
        if self.claims:
            key = self.chance.choice(sorted(self.claims))
            self.inventory.claim_changed(self.claims.pop(key), None)

    def do_quota(self):
        space, name = self.chance.choice(SPACES), self.chance.choice("ab")
        before = self.quotas.get((space, name))
        if before is not None and self.chance.random() < 0.4:
            self.inventory.quota_changed(before, None)
            del self.quotas[space, name]
            return
        keys = self.chance.sample(
            ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"), self.chance.randint(0, 3)
        )
        fresh = quota_object({key: self.chance.randint(0, 9) for key in keys}, name, space)
        self.inventory.quota_changed(before, fresh)
        self.quotas[space, name] = fresh

    def do_publish(self):
        self.publish()

    def do_again(self):
        """News may come twice."""
        for each in self.claims.values():
            self.inventory.claim_changed(each, each)
        for each in self.quotas.values():
            self.inventory.quota_changed(None, each)

    # -- what it should be

    def expected(self):
        counted = {each.metadata.uid: (each.metadata.namespace, self.results_of(each)) for each in self.claims.values()}
        counted |= self.assumed
        limited = {space for (space, _), each in self.quotas.items() if each.spec.hard}
        used = {space: Counter() for space in limited}
        for space, results in counted.values():
            for result in results if space in limited else ():
                if not result.get("adminAccess"):
                    used[space].update(self.of(result))
        return {space: dict(+amounts) for space, amounts in used.items()}

    def of(self, result):
        consumed = result.get("consumedCapacity")
        memory = int(consumed["memory"].removesuffix("Mi")) if consumed else self.sizes[result["device"]]
        cores = int(consumed["cores"]) if consumed else 100
        return {
            "nvidia.com/gpu": 1,
            "nvidia.com/gpumem": memory,
            "nvidia.com/gpucores": cores,
            "volcano.sh/vgpu-number": 1,
            "volcano.sh/vgpu-memory": memory,
            "volcano.sh/vgpu-cores": cores,
        }

    @staticmethod
    def results_of(found):
        allocation = found.status.allocation
        return [
            {
                "device": result.device,
                "adminAccess": result.admin_access,
                "consumedCapacity": dict(result.consumed_capacity) or None,
            }
            for result in (allocation.devices.results if allocation else ())
        ]

    def check(self):
        book = self.inventory.quotas
        assert {space: dict(book.used(space)) for space in book.namespaces} == self.expected()


@pytest.mark.parametrize("seed", range(40))
def test_usage_by_difference_is_what_a_slow_count_finds(seed):
    account = Account(seed)
    for _ in range(60):
        account.step()
        account.check()
    for key in sorted(account.claims):
        account.inventory.claim_changed(account.claims[key], None)
    for uid in sorted(account.assumed):
        account.inventory.forget(uid)
    account.claims, account.assumed = {}, {}
    account.check()
    assert not account.inventory.quotas._charges
    assert not account.inventory.quotas._namespace_of


# -- the choice --------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.lists(st.sampled_from((1000, 2000, 3000, 5000)), min_size=1, max_size=4), min_size=1, max_size=3)
"""By node."""
WANTED = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(("all", "half", 500, 1000, 2500)), st.sampled_from((0, 30))),
    min_size=1,
    max_size=3,
)
HARD = st.fixed_dictionaries(
    {},
    optional={
        "nvidia.com/gpu": st.integers(0, 6),
        "nvidia.com/gpumem": st.integers(0, 9000),
        "nvidia.com/gpucores": st.integers(0, 200),
    },
)


def memory_of(wanted, size):
    return {"all": size, "half": size * MIB * 50 // 100 // MIB}.get(wanted, wanted)


def exists(sizes, wanted, hard):
    """Whether any choice of cards of one node is within memory and quota."""
    choices = [tuple(combinations(range(len(sizes)), count)) for count, _, _ in wanted]
    for chosen in product(*choices):
        used = Counter()
        cards = Counter()
        for (_, memory, cores), indices in zip(wanted, chosen, strict=True):
            for index in indices:
                amount = memory_of(memory, sizes[index])
                cards[index] += amount
                used.update({"nvidia.com/gpu": 1, "nvidia.com/gpumem": amount, "nvidia.com/gpucores": cores})
        fits = all(amount <= sizes[index] for index, amount in cards.items())
        if fits and all(not used[key] or used[key] <= most for key, most in hard.items()):
            return True
    return False


def claim_of(number, count, memory, cores):
    capacity = {"cores": str(cores)}
    config = []
    if isinstance(memory, int):
        capacity["memory"] = f"{memory}Mi"
    if memory == "half":
        config = [{"opaque": {"driver": DRIVER, "parameters": {"memoryPercent": 50}}}]
    return claim(f"c{number}", [request(count=count, **capacity)], config=config)


@settings(max_examples=300, deadline=None)
@given(
    sizes=SIZES,
    wanted=WANTED,
    hard=HARD,
    device=st.sampled_from(("spread", "binpack", "topology-aware")),
    islands=st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_a_pod_is_refused_only_where_no_choice_of_cards_would_do(sizes, wanted, hard, device, islands):
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number, of_node in enumerate(sizes):
        devices = []
        for index, size in enumerate(of_node):
            made = card(index, memory=f"{size}Mi")
            made["attributes"]["hami.io/linkGroup"] = {"int": islands[index]}
            devices.append(made)
        inventory.node_changed(None, node(f"n{number}"))
        inventory.slice_changed(None, slice_of(f"n{number}", devices))
    inventory.quota_changed(None, quota_object(hard))
    claims = [claim_of(number, *each) for number, each in enumerate(wanted)]
    scheduling_request = SchedulingRequest(
        pod=pod(),
        claims=tuple(PodClaim(f"c{number}", each) for number, each in enumerate(claims)),
        policies=Policies(device_policy=DevicePolicy((device,))),
    )
    answer = decide(inventory, scheduling_request, Options(managed=frozenset({DRIVER})))
    assert isinstance(answer, Decision) == any(exists(of_node, wanted, hard) for of_node in sizes)
    if isinstance(answer, Decision):
        for entry in answer.allocations:
            inventory.claim_changed(None, entry.claim)
            assume(inventory, entry.claim.metadata.uid, entry.allocation)
        used = inventory.quotas.used("default")
        assert all(not used.get(key) or used[key] <= most for key, most in hard.items())
    else:
        assert not answer.error
        unlimited = any(exists(of_node, wanted, {}) for of_node in sizes)
        assert ("ResourceQuotaNotFit" in answer.reasons) or not unlimited
