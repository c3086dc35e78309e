"""Hundreds of pods come and go while the fence is torn down, a leader hangs and machines join: no card is ever over-committed.

Requests, policies and deletes are random. The seed is printed; $HAMI_DRA_CHURN_SEED repeats it (what runs at the same time
is never quite the same). What is judged, by the API server alone: each state that claims and slices went through, and at the
end that no pod waits for which there is room, that all run once there is room for all, and that nothing stays allocated.
"""

import os
import random
import threading
from collections import defaultdict
from dataclasses import dataclass

import pytest

from hack.controlplane.api import ApiError, NotReached
from hack.installation import DRIVER, QUICK
from tests.e2e import observe
from tests.e2e.fence_story import the_one_rule
from tests.e2e.objects import legacy_pod, pod, policies, request, template
from tests.e2e.observe import Expired, Watcher

PODS = int(os.environ.get("HAMI_DRA_CHURN_PODS") or 200)
"""500 in make soak."""
BATCH = 25
FENCE_DELETED_AT, MACHINES_JOIN_AT, LEADER_HANGS_AT = 75, 125, 175
BACKLOG = 40  # pods that may still carry the gate when the next batch is made
PATIENCE = 180  # seconds: far more than anything here takes

CARDS = 8
MOST_CARDS = 2  # of one pod
FIRST = {
    "dgx-h100": [f"h100-{number}" for number in range(8)],
    "l40s-pcie-8": [f"l40s-{number}" for number in range(8)],
}
LATER = {"dgx-h100": ["h100-8", "h100-9"], "l40s-pcie-8": ["l40s-8", "l40s-9"]}
MACHINES = [name for group in (FIRST, LATER) for names in group.values() for name in names]

WHOLE = 100  # percent of the cores: such a request wants a card of its own
DEVICE_POLICIES = ["binpack", "spread", "topology-aware", "numa", "mutex", "numa,binpack", "mutex,spread"]


@pytest.fixture(scope="module")
def hami(make_installation):
    """Two controllers, one of which leads, and the webhook."""
    installation = make_installation()
    for name in ("controller", "controller-2"):
        installation.start_controller(*QUICK, name=name)
    installation.start_webhook()
    installation.wait_ready()
    return installation


# --- what pods ask for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """One request: `count` cards, whole ones where neither `memory` (MiB of each card) nor `percent` of it is given."""

    count: int = 1
    memory: int = 0
    percent: int = 0
    cores: int = WHOLE

    def template(self, name):
        if not self.memory and not self.percent:
            return template(name, request(device_class="nvidia-gpu.hami.io", count=self.count))
        memory = f"{self.memory}Mi" if self.memory else None
        parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "memoryPercent": self.percent}
        config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}] if self.percent else []
        return template(name, request(count=self.count, memory=memory, cores=str(self.cores)), config=config)

    def legacy_limits(self):
        limits = {"gpu": self.count, "gpumem": self.memory, "gpumem_percentage": self.percent, "gpucores": self.cores}
        if not self.memory and not self.percent:
            del limits["gpucores"]
        return {key: value for key, value in limits.items() if value}


def random_ask(dice, *, most=MOST_CARDS):
    """Never more of a card than the smallest of the machines' cards has."""
    cores = dice.choice([0, 0, 0, 10, 25, 30, 50, 60, WHOLE])
    count = dice.choices([1, 2], [4, 1])[0] if most > 1 else 1
    kind = dice.choices(["memory", "percent", "whole"], [10, 3, 2])[0]
    if kind == "memory":
        return Ask(count, memory=dice.randint(1000, 30000), cores=cores)
    if kind == "percent":
        return Ask(count, percent=dice.randint(5, 60), cores=cores)
    return Ask(dice.randint(1, most))


@dataclass(frozen=True)
class Plan:
    """A pod as it is created, and what it asks for."""

    item: dict
    asks: tuple[Ask, ...]
    alone: bool
    """By a `mutex` policy: only on cards that nobody uses."""


class Pods:
    """Makes random pods, by the dice alone."""

    def __init__(self, dice):
        self._dice = dice
        single = {f"one-{number}": random_ask(dice, most=1) for number in range(20)}
        self.templates = {**single, **{f"more-{number}": random_ask(dice) for number in range(20)}}
        self._single = list(single)
        self._legacy = [random_ask(dice) for _ in range(12)]
        self.plans = {}

    def next(self):
        dice, name = self._dice, f"pod-{len(self.plans):03}"
        device_policy = dice.choice(DEVICE_POLICIES)
        annotations = policies(dice.choice(["binpack", "spread"]), device_policy)
        kind = dice.choices(["template", "two templates", "legacy"], [12, 3, 5])[0]
        if kind == "legacy":
            ask = dice.choice(self._legacy)
            item, asks = legacy_pod(name, annotations=annotations, **ask.legacy_limits()), (ask,)
        else:
            used = dice.sample(self._single, 2) if kind == "two templates" else [dice.choice(list(self.templates))]
            item = pod(name, templates=used, annotations=annotations, gated=dice.random() < 0.8)
            asks = tuple(self.templates[each] for each in used)
        assert sum(ask.count for ask in asks) <= MOST_CARDS
        self.plans[name] = Plan(item, asks, "mutex" in device_policy)
        return item


# --- where there is room, by the API server ----------------------------------------------------------------------------


class Card:
    """What is left of one published device."""

    def __init__(self, device):
        self.totals = {name: observe.amount(each["value"]) for name, each in device["capacity"].items()}
        self.free = dict(self.totals)
        self.idle = True

    def take(self, result):
        self.idle = False
        for name, value in result["consumedCapacity"].items():
            self.free[name] -= observe.amount(value)

    def serves(self, ask, *, alone):
        """HAMi's rules too: all cores only on an idle card, no cores not where all are taken."""
        if not self.idle and (alone or ask.cores == WHOLE):
            return False
        if ask.percent:
            memory = self.totals["memory"] * ask.percent // 100
        else:
            memory = ask.memory << 20 or self.totals["memory"]
        return self.free["memory"] >= memory and self.free["cores"] >= max(ask.cores, 1) and self.free["shares"] >= 1


def cards_by_node(slices, claims):
    cards = {
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"]): (item["spec"]["nodeName"], Card(device))
        for item in slices
        for device in item["spec"]["devices"]
    }
    for _, result in observe.allocations(claims):
        cards[result["driver"], result["pool"], result["device"]][1].take(result)
    by_node = defaultdict(list)
    for node, card in cards.values():
        by_node[node].append(card)
    return by_node


def has_room(plan, cards):
    """Whether the cards of one node surely serve the pod: here each of its requests gets cards of its own."""
    left = list(cards)
    for ask in sorted(plan.asks, key=lambda ask: -ask.cores):
        chosen = [card for card in left if card.serves(ask, alone=plan.alone)][: ask.count]
        if len(chosen) < ask.count:
            return False
        left = [card for card in left if card not in chosen]
    return True


# --- what the API server says at every moment --------------------------------------------------------------------------


class Follower(Watcher):
    """Follows slices as well as claims, so machines may join. `lists` counts what could hide states in between: 1 is the start."""

    def __init__(self, api):
        super().__init__(api)
        self.lists = 0
        self.slice_events = 0
        self._slices = {}
        self._changed = threading.Condition(threading.RLock())
        self._slice_thread = threading.Thread(target=self._follow_slices, name="slice watcher", daemon=True)

    def __enter__(self):
        answer = self._api.get(observe.SLICES)
        for item in answer["items"]:
            self._slices[item["metadata"]["name"]] = item
        self._slice_version = answer["metadata"]["resourceVersion"]
        self._publish()
        super().__enter__()
        self._slice_thread.start()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self._slice_thread.join(timeout=10)

    def _relist(self):
        with self._changed:
            self.lists += 1
            super()._relist()

    def _take(self, event):
        with self._changed:
            super()._take(event)

    def _check(self, touched, when):
        # The two watches are not in step: an allocation may be heard of before the slice that came first.
        keys = set(touched)
        self._changed.wait_for(lambda: keys <= self._devices.keys(), timeout=30)
        super()._check(keys, when)

    def _publish(self):
        self._devices = observe._newest_devices(list(self._slices.values()))

    def _follow_slices(self):
        while not self._stopping.is_set():
            try:
                query = {"resourceVersion": self._slice_version, "allowWatchBookmarks": "true"}
                for event in self._api.watch(observe.SLICES, seconds=2, **query):
                    self._take_slice(event)
            except (ApiError, NotReached, Expired) as error:
                # it would have to be listed again, and what lay between is lost: no verdict
                self.problems.append(f"the watch of slices broke: {error}")
                return

    def _take_slice(self, event):
        item = event["object"]
        if event["type"] == "ERROR":
            raise Expired(str(item))
        self._slice_version = item["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        with self._changed:
            self.slice_events += 1
            if event["type"] == "DELETED":
                del self._slices[item["metadata"]["name"]]
            else:
                self._slices[item["metadata"]["name"]] = item
            self._publish()
            self._changed.notify_all()
            pool = (item["spec"]["driver"], item["spec"]["pool"]["name"])
            Watcher._check(self, [key for key in self._on_device if key[:2] == pool], f"slice of {pool}")


# --- the churn ---------------------------------------------------------------------------------------------------------


class Churn:
    """Creates pods in batches, deletes some of those alive after each, and lets hami-dra keep up."""

    def __init__(self, lab, dice):
        self.lab = lab
        self.dice = dice
        self.pods = Pods(dice)
        self.alive = []
        lab.create(*(ask.template(name) for name, ask in self.pods.templates.items()))

    @property
    def made(self):
        return len(self.pods.plans)

    def batch(self):
        for _ in range(BATCH):
            item = self.pods.next()
            self.lab.create(item)
            self.alive.append(item["metadata"]["name"])
        for name in self.dice.sample(self.alive, self.dice.randint(0, BATCH - 5)):
            self.delete(name)

    def delete(self, name):
        """By their grace period, or at once as an administrator who lost patience."""
        self.lab.delete_pod(name, **({"gracePeriodSeconds": 0} if self.dice.random() < 0.3 else {}))
        self.alive.remove(name)

    def keep_up(self):
        """Until few pods carry the gate; those without room lose it too."""
        self.lab.hami.wait_for(
            "few gated pods",
            lambda: sum("schedulingGates" in item["spec"] for item in self.lab.pods()) <= BACKLOG,
            seconds=PATIENCE,
        )

    def pending(self):
        """Names of the pods that kube-scheduler has not bound."""
        return sorted(
            item["metadata"]["name"]
            for item in self.lab.pods(fieldSelector="spec.nodeName=")
            if "deletionTimestamp" not in item["metadata"]
        )

    def overlooked(self):
        """Unbound pods that hold an allocation, and those that a node has room for."""
        claims, waiting = self.lab.claims(), self.pending()
        holders = {
            consumer["name"] for claim, _ in observe.allocations(claims) for consumer in claim["status"]["reservedFor"]
        }
        nodes = cards_by_node(self.lab.slices(), claims)
        return {
            name: "allocated" if name in holders else "room"
            for name in waiting
            if name in holders or any(has_room(self.pods.plans[name], cards) for cards in nodes.values())
        }

    def wait_settled(self):
        found = {}

        def settled():
            nonlocal found
            found = self.overlooked()
            return not found

        try:
            self.lab.hami.wait_for("nobody overlooked", settled, seconds=PATIENCE)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {found}\n{self.lab.describe()}") from None


def hang_the_leader(churn):
    """It is stopped with work before it until another leads, and goes on in the middle of the other's work."""
    hami = churn.lab.hami
    hung = hami.wait_for("a leader", hami.leader)
    (other,) = [each for each in hami.controllers() if each is not hung]
    churn.batch()
    hung.process.pause()
    try:
        hami.wait_for("the other to lead", lambda: other.metric("hami_dra_leader"), seconds=PATIENCE)
        churn.batch()
    finally:
        hung.process.resume()
    return other


@pytest.mark.timeout(900)
def test_no_card_is_ever_given_twice_and_every_pod_that_can_run_does(lab):
    seed = int(os.environ.get("HAMI_DRA_CHURN_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"HAMI_DRA_CHURN_SEED={seed}")  # noqa: T201 (pytest shows it with a failure)
    for machine, names in FIRST.items():
        lab.machines(machine, *names)
    churn = Churn(lab, random.Random(seed))
    (fence,) = lab.hami.fence_rules("nvidia.hami.io")
    with Follower(lab.api) as follower:
        while churn.made < PODS:
            made = churn.made
            if made == LEADER_HANGS_AT:
                successor = hang_the_leader(churn)
            else:
                churn.batch()
            if made == FENCE_DELETED_AT:
                lab.api.remove(fence)
            if made == MACHINES_JOIN_AT:
                for machine, names in LATER.items():
                    lab.machines(machine, *names)
            churn.keep_up()
        churn.wait_settled()
        waiting = churn.pending()
        found = f"{len(churn.alive)} pods are left, {len(waiting)} wait; {follower.allocations_seen} allocations"
        print(found)  # noqa: T201 (as above)
        make_room_for_all(churn, waiting)
    assert follower.problems == []
    assert follower.lists == 1  # not one state of a claim was missed
    assert follower.slice_events >= sum(map(len, LATER.values()))
    assert successor.metric("hami_dra_commits_total", result="done") > 0

    assert the_one_rule(lab)["metadata"]["uid"] != fence["metadata"]["uid"]
    lab.hami.wait_for("one leader", lambda: sum(each.metric("hami_dra_leader") for each in lab.hami.controllers()) == 1)

    lab.clear()
    assert observe.allocations(lab.api.list(observe.CLAIMS)) == []
    # neither has the controller kept anything in mind: every card of every machine can be had
    lab.create(template("machine", request(device_class="nvidia-gpu.hami.io", count=CARDS)))
    names = [f"all-of-{number}" for number in range(len(MACHINES))]
    lab.create(*(pod(name, templates=["machine"]) for name in names))
    found = lab.wait_running(names=names, seconds=PATIENCE)
    assert sorted(each.node for each in found) == sorted(MACHINES)


def make_room_for_all(churn, waiting):
    """Empties half of the machines; then what waited must run, but for those that are too many for that.

    While fewer than `per_machine` of the waiting pods, each on at most MOST_CARDS cards, are on an emptied machine, it has
    MOST_CARDS idle cards left, and they serve any of these pods. So no pod can be left over, whoever goes where.
    """
    emptied = set(churn.dice.sample(MACHINES, len(MACHINES) // 2))
    per_machine = CARDS // MOST_CARDS
    for name in waiting[len(emptied) * per_machine :]:
        churn.delete(name)
    for item in churn.lab.pods():
        name = item["metadata"]["name"]
        if name in churn.alive and name not in waiting and item["spec"].get("nodeName") in emptied:
            churn.delete(name)
    assert len(churn.lab.wait_running(names=set(churn.alive), seconds=PATIENCE)) >= len(churn.alive)
