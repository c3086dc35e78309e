"""A random life of a cluster with the whole controller and the real `decide`, in virtual time, from one seed.

Steps are what happens to clusters: pods, gangs and claims come and go, nodes and slices change, writes fail, the API server is
away, leaders die. Most lives have one or two themes besides (`tests.support.life_themes`). In the end everything works again, and after a while of rest the cluster is judged:

- no device is given away twice (also after every step), and none is held by a pod that does not run;
- since a quota is known everywhere, no more is used than it allows;
- no member of a gang was bound before enough members had their devices;
- what the controller has kept by difference equals what is computed from the same objects from scratch, and decides the same;
- a restarted controller finds nothing left to do: no wake-up was lost.

A life that runs in circles ends with `Endless`.
"""

import asyncio
import copy
import random
from collections import Counter, defaultdict
from contextlib import aclosing, suppress
from unittest.mock import patch

import msgspec

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory import Inventory
from controller.reconcile.binding import AssumedPods, ClaimWriter
from controller.reconcile.runtime import Context, Informers, taint_rule_kind
from controller.reconcile.scheduling_cycle import SchedulingCycle, cycle
from controller.scoring import Policies
from hami_dra.api import kinds
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_live, is_pending
from hami_dra.api.quantity import Quantity
from hami_dra.kube.decoding import read_object
from hami_dra.kube.embedded import scheduler
from hami_dra.kube.protocol import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from tests.support import virtual_time
from tests.support.gang_objects import (
    KUEUE_LABEL,
    NAME_LABEL,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    annotated,
    in_kueue_group,
    in_labelled_group,
    in_pod_group,
    labelled,
    pod_group,
)
from tests.support.harness import DRIVER, SPACE, claim, claim_spec, play, pod
from tests.support.life_themes import CHANNELS, HOST, NODES, SIZES, VENDOR, ZONE, Themes
from tests.support.mortal import Mortal

APPS = ("x", "y", "z")
THEMES = ("quotas", "volumes", "fabric", "names", "room")
MANAGED = frozenset({DRIVER, VENDOR, CHANNELS})
SETTINGS = {
    "managed": MANAGED,
    "own_drivers": MANAGED,
    "quiet_time": 0.0,
    "probe": False,
    "decide": decide,
    "gang_hold": 20.0,
    "retry_most": 10.0,
    "refusal_time": 5.0,
    "refusal_time_most": 20.0,
    "unschedulable_timeout": 5.0,
    "orphan_age": 20.0,
}
REST = 240.0
"""Seconds after which nothing is under way: undo, holds, pauses, writes that may still take effect (two minutes)."""
RESTART = 60.0
_TURNS_AT_ONCE = 200_000
"""Turns of the event loop without a step of the clock, and in one second of it."""
_EVALUATIONS = 60_000
_WRITES = frozenset({"patch", "create", "delete", "evict"})


class Endless(BaseException):
    """The controller does the same again and again."""


class Trouble:
    """Between a controller and the cluster: faults, outages, slow answers, watches that lag or end."""

    def __init__(self, inner, source):
        self._inner = inner
        self._random = source
        self.slow = 0.0
        """The most seconds that an answer takes, before and after its effect."""
        self._faults = []
        self._outages = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    def fail_next(self, error, matches, *, applied, times):
        self._faults += [(error, matches, applied)] * times

    def go_away(self, matches, *, after, seconds, applied):
        """From its write number `after` on that matches, such requests fail for `seconds`; this share of writes has effect."""
        self._outages.append([matches, after, seconds, applied, None])

    def heal(self):
        self._faults.clear()
        self._outages.clear()
        self.slow = 0.0
        self.flowing.set()

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name == "watch":
            return self._watch
        if name not in ("patch", "create", "delete", "evict", "get", "list"):
            return target

        async def call(*arguments, **options):
            kind = kinds.POD if name == "evict" else arguments[0]
            if kind.name in ("Event", "Lease"):
                return await target(*arguments, **options)
            await self._take_time()
            error, applied = self._problem(name, kind)
            if error is None:
                result = await target(*arguments, **options)
                await self._take_time()
                return result
            if applied and name in _WRITES:
                await target(*arguments, **options)
            await self._take_time()
            raise error

        return call

    async def _take_time(self):
        if self.slow:
            await asyncio.sleep(self._random.uniform(0, self.slow))

    def _problem(self, verb, kind):
        now = asyncio.get_running_loop().time()
        for outage in self._outages:
            matches, after, seconds, applied, since = outage
            if not matches(verb, kind):
                continue
            if since is None and verb in _WRITES:
                outage[1] = after - 1
                if after <= 1:
                    outage[4] = since = now
            if since is not None and now < since + seconds:
                return Unavailable("the API server is away"), self._random.random() < applied
        for fault in self._faults:
            error, matches, applied = fault
            if matches(verb, kind):
                self._faults.remove(fault)
                return error, applied
        return None, False

    async def _watch(self, *arguments, **options):
        async with aclosing(self._inner.watch(*arguments, **options)) as events:
            async for event in events:
                await self.flowing.wait()
                yield event


class Life(Themes):
    """What happens, one step after the other."""

    themes_of_all = THEMES

    def __init__(self, harness, seed):
        self.harness = harness
        self.cluster = harness.cluster
        self.random = random.Random(seed)
        self.number = 0
        self.bodies = {}
        """Name → body of pods that are, or were, there."""
        self.least = {}
        """Gang → minCount."""
        self.began = set()
        """Gangs of which enough members had devices at one moment, and some have since."""
        self.loose = set()
        """Gangs with a member that has, or had, no gate of ours before it had devices: docs/gangs.md says what follows."""
        self.problems = []
        self.story = []
        self.elects = self.random.random() < 0.3
        self.calm = self.random.random() < 0.2
        self.themes = self.random.sample(
            self.themes_of_all, min(self.random.choice([0, 1, 1, 2, 2]), len(self.themes_of_all))
        )
        self.story.append(" ".join(["themes:", *self.themes]))

    async def run(self, steps):
        harness = self.harness
        await self.furnish()
        await self.nodes_come_back()
        self.cluster.hooks.append(self.watch)
        self.start_controller()
        await harness.sleep(8 if self.elects else 0.5)
        chosen = [each for each in self.steps() if not (self.calm and each[0] in self.trouble_steps())]
        for _ in range(steps):
            step = self.random.choices([step for step, _ in chosen], [weight for _, weight in chosen])[0]
            self.story.append(f"{harness.clock.monotonic():.2f} {step.__name__}")
            try:
                await step()
            except (NotFound, AlreadyExists, Conflict, Invalid, Forbidden) as error:
                self.story.append(f"    {error}")
            await self.check_over_given()
            self.check_quota()
            await harness.sleep(self.random.choice([0.0, 0.0, 0.01, 0.1, 0.5, 2.0, 8.0]))
        await self.come_to_rest()
        await self.judge()

    def settings(self):
        return SETTINGS

    def steps(self):
        """What may happen, and how often in proportion."""
        return [
            (self.add_gang, 14), (self.add_single, 12), (self.add_shared, 5), (self.delete_pod, 10), (self.make_again, 7),
            (self.finish, 3), (self.relabel_pod, 8), (self.resize_pod, 4), (self.cordon, 3), (self.taint, 2), (self.relabel_node, 2),
            (self.resize_node, 2), (self.node_goes, 3), (self.slice_changes, 3), (self.delete_claim, 3), (self.lose_fence, 2),
            (self.change_group, 3), (self.fault, 9), (self.outage, 9), (self.slow_answers, 2), (self.lag, 3), (self.close_watches, 3),
            (self.kill, 4), *self.themed_steps(),
        ]  # fmt: skip

    def trouble_steps(self):
        """Those that a calm life has not."""
        return {self.fault, self.outage, self.slow_answers, self.lag, self.close_watches, self.kill, self.lose_fence}

    def start_controller(self):
        self.trouble = Trouble(self.cluster, self.random)
        self.mortal = Mortal(self.trouble, 0, before=False)
        self.task = self.harness.start(through=self.mortal, leader_election=self.elects, **self.settings())

    # --- pods and what they ask for -------------------------------------------------------------------------------------

    def new_pod(self, name, *, gated=None, **options):
        chance, spec = self.random.random(), {}
        app = self.random.choice(APPS)
        term = {
            "labelSelector": {"matchLabels": {"app": self.random.choice(APPS)}},
            "topologyKey": self.random.choice([HOST, ZONE]),
        }
        if chance < 0.10:
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif chance < 0.14:
            spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif chance < 0.20:
            spec["affinity"] = {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]
                }
            }
        elif chance < 0.28:
            spread = {
                "maxSkew": 1,
                "whenUnsatisfiable": self.random.choice(["DoNotSchedule", "ScheduleAnyway"]),
                **term,
            }
            spec["topologySpreadConstraints"] = [{**spread, "labelSelector": {"matchLabels": {"app": app}}}]
        elif chance < 0.33:
            spec["nodeSelector"] = {ZONE: self.random.choice("ab")}
        elif chance < 0.36:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        if self.random.random() < 0.2:
            spec["priority"] = self.random.choice([-5, 10, 1000])
        if "claims" not in options:
            options["templates"] = [f"t{self.random.choice(SIZES)}" for _ in range(self.random.choice([1, 1, 1, 2]))]
        self.themed_pod(spec)
        gated = self.random.random() < 0.85 if gated is None else gated
        body = pod(name, gated=gated, cpu=self.random.choice(["100m", "500m", "1", "2"]), **spec, **options)
        if self.random.random() < 0.08:
            body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
        return labelled(body, {"app": app})

    async def create(self, body):
        self.bodies[body["metadata"]["name"]] = body
        await self.harness.add(kinds.POD, body)

    async def add_single(self):
        self.number += 1
        await self.create(self.new_pod(f"s{self.number}"))

    async def add_shared(self):
        self.number += 1
        name = f"c{self.number}"
        bodies = [self.new_pod(f"{name}-{user}", claims=[name]) for user in "abc"[: self.random.choice([1, 2, 2, 3])]]
        late = self.random.random() < 0.3
        if not late:
            await self.harness.add(kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES)))
        for body in bodies:
            await self.create(body)
        if late:
            await self.harness.sleep(0.2)
            await self.harness.add(kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES)))

    async def add_gang(self):
        """Its members come in any order, sometimes not all, sometimes more than minCount, sometimes with a shared claim."""
        self.number += 1
        name, source = f"g{self.number}", self.random.choice(["labels", "PodGroup", "kueue"])
        size = self.random.choice([2, 2, 2, 3, 3, 4])
        least = size if source == "kueue" else max(1, size - self.random.choice([0, 0, 0, 1]))
        self.least[name] = least
        shared = self.random.random() < 0.1
        topology = self.random.choice([REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY]) if self.random.random() < 0.15 else ""
        if shared:
            await self.harness.add(kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES)))
        there = list(range(size - (self.random.random() < 0.15)))
        self.random.shuffle(there)
        group_at = self.random.choice(there)
        for index in there:
            options = {"claims": [name], "templates": ["t4"]} if shared and index < 2 else {}
            if self.domain:
                options = {"claims": [], **options, "templates": ["t4", "channel"]}
            body = self.new_pod(f"{name}-{index}", gated=self.random.random() < 0.97, **options)
            if topology:
                body = annotated(body, {topology: ZONE})
            if source == "PodGroup" and index == group_at:
                await self.add_group(name, least)
            await self.create(self.grouped(body, name, source))
            if self.random.random() < 0.2:
                await self.harness.sleep(0.1)

    def grouped(self, body, name, source):
        if "schedulingGates" not in body["spec"]:
            self.loose.add(name)
        if source == "PodGroup":
            return in_pod_group(body, name)
        return (
            in_kueue_group(body, name, self.least[name])
            if source == "kueue"
            else in_labelled_group(body, name, self.least[name])
        )

    async def add_group(self, name, least):
        body = pod_group(name, least)
        body["metadata"]["namespace"] = SPACE
        await self.harness.add(kinds.POD_GROUP, body)

    async def a_pod(self, wanted=lambda _: True):
        found = [each for each in await self.harness.pods() if wanted(each)]
        if not found:
            raise NotFound("no such pod")
        return self.random.choice(found)

    async def delete_pod(self):
        await self.harness.delete_pod((await self.a_pod()).metadata.name)

    async def make_again(self):
        name = (await self.a_pod()).metadata.name
        await self.harness.delete_pod(name)
        await self.harness.sleep(self.random.choice([0.0, 0.0, 0.1, 1.0]))
        await self.create(self.bodies[name])

    async def finish(self):
        found = await self.a_pod(lambda each: each.status.phase == "Running")
        patch_ = {"status": {"phase": self.random.choice(["Succeeded", "Failed"])}}
        await self.cluster.patch(kinds.POD, found.metadata.name, patch_, namespace=SPACE, subresource="status")

    async def relabel_pod(self):
        """Rather one that has its devices and no node yet."""
        pinned = [each for each in await self.harness.pods() if is_pending(each) and each.status.nominated_node_name]
        found = self.random.choice(pinned) if pinned and self.random.random() < 0.7 else await self.a_pod()
        patch_ = {"metadata": {"labels": {"app": self.random.choice(APPS)}}}
        await self.cluster.patch(kinds.POD, found.metadata.name, patch_, namespace=SPACE)

    async def resize_pod(self):
        found = await self.a_pod(is_live)
        raw = copy.deepcopy(await self.cluster.get_raw(kinds.POD, found.metadata.name, SPACE))
        raw["spec"]["containers"][0]["resources"]["requests"]["cpu"] = self.random.choice(["100m", "1", "3"])
        self.cluster.put_raw(kinds.POD, raw)  # as by the subresource resize

    async def delete_claim(self):
        if found := await self.harness.claims():
            await self.cluster.delete(kinds.RESOURCE_CLAIM, self.random.choice(found).metadata.name, namespace=SPACE)

    async def change_group(self):
        """minCount is lowered in place, or the group is created again."""
        found = (await self.cluster.list(kinds.POD_GROUP)).items
        if not found:
            return
        name = self.random.choice(found).metadata.name
        self.least[name] = max(1, self.least[name] - 1)
        await self.cluster.delete(kinds.POD_GROUP, name, namespace=SPACE)
        await self.harness.sleep(self.random.choice([0.0, 0.5]))
        await self.add_group(name, self.least[name])

    # --- nodes ----------------------------------------------------------------------------------------------------------

    async def cordon(self):
        await self.harness.patch_node(
            self.random.choice(NODES), {"spec": {"unschedulable": self.random.random() < 0.5}}
        )

    async def taint(self):
        taints = [{"key": "dedicated", "value": "y", "effect": "NoSchedule"}] if self.random.random() < 0.5 else []
        await self.harness.patch_node(self.random.choice(NODES), {"spec": {"taints": taints}})

    async def relabel_node(self):
        await self.harness.patch_node(
            self.a_node_that_is_waited_for(),
            {"metadata": {"labels": {ZONE: self.random.choice(["a", "b", None])}}},
        )

    async def resize_node(self):
        allocatable = {"cpu": self.random.choice(["2", "4", "8"]), "pods": self.random.choice(["3", "110"])}
        await self.harness.patch_node(self.random.choice(NODES), {"status": {"allocatable": allocatable}}, status=True)

    async def node_goes(self):
        """Node and slices, in any order, one of them or both; they come back some time."""
        name = self.random.choice(NODES)
        victims = [(kinds.NODE, name), (kinds.RESOURCE_SLICE, self.slice_of(name)["metadata"]["name"])]
        self.random.shuffle(victims)
        for kind, each in victims[: self.random.choice([1, 2, 2])]:
            await self.cluster.delete(kind, each)
            await self.harness.sleep(self.random.choice([0.0, 0.1, 3.0]))
        if self.random.random() < 0.6:
            await self.harness.sleep(self.random.choice([0.0, 1.0]))
            await self.nodes_come_back()

    async def nodes_come_back(self):
        for index, name in enumerate(NODES):
            with suppress(AlreadyExists):
                labels = {HOST: name, ZONE: "ab"[index % 2]}
                await self.harness.add_node(name, cpu="4", labels=labels, driver=self.driver)
                await self.themed_node_comes(name)
            with suppress(AlreadyExists):
                await self.harness.add(kinds.RESOURCE_SLICE, self.slice_of(name))

    async def slice_changes(self):
        """A card is lost, comes back, or gets a taint."""
        name = self.random.choice(NODES)
        body = self.slice_of(name, cards=self.random.choice([1, 2, 3]))
        if self.random.random() < 0.3:
            body["spec"]["devices"][0]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
        body["spec"]["pool"]["generation"] = 1
        patch_ = {"spec": {"devices": body["spec"]["devices"]}}
        await self.cluster.patch(kinds.RESOURCE_SLICE, body["metadata"]["name"], patch_)

    # --- trouble --------------------------------------------------------------------------------------------------------

    def some_requests(self):
        kind = self.random.choice([None, None, kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM, kinds.POD])
        verb = self.random.choice(["", "", "", "patch", "get"])
        return lambda asked, about: (kind is None or about is kind) and verb in ("", asked)

    async def fault(self):
        error = self.random.choice(
            [Unavailable("away"), Unavailable("too many requests"), Conflict("changed"), Unavailable("500"), Invalid("no"), Forbidden("no")]
        )  # fmt: skip
        applied = isinstance(error, Unavailable) and self.random.random() < 0.5
        kind = self.random.choice([kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM, kinds.POD])
        times = self.random.choice([1, 1, 2, 3, 8])
        self.trouble.fail_next(
            error, lambda verb, about: verb == "patch" and about is kind, applied=applied, times=times
        )

    async def outage(self):
        """It begins at one of the next writes; often while a gang is being placed."""
        seconds = self.random.choice([0.5, 3.0, 8.0, 15.0, 30.0, 60.0])
        applied = self.random.choice([0.0, 0.0, 0.3, 1.0])
        if self.random.random() < 0.4:
            error = self.random.choice([Invalid("no"), Conflict("changed"), Forbidden("no")])
            self.trouble.fail_next(
                error, lambda verb, about: verb == "patch" and about is kinds.RESOURCE_CLAIM, applied=False, times=1
            )
        self.trouble.go_away(self.some_requests(), after=self.random.randint(1, 10), seconds=seconds, applied=applied)
        if self.random.random() < 0.7:
            await self.add_gang()

    async def slow_answers(self):
        self.trouble.slow = self.random.choice([0.0, 0.2, 2.0])

    async def lag(self):
        self.trouble.flowing.clear()
        await self.add_gang()
        await self.harness.sleep(self.random.choice([0.1, 1.0, 5.0]))
        self.trouble.flowing.set()

    async def close_watches(self):
        if self.random.random() < 0.5:
            self.cluster.forget_history()
        self.cluster.close_watches(Unavailable("connection lost"), drop=self.random.random() < 0.3)

    async def lose_fence(self):
        kind = kinds.DEVICE_TAINT_RULE
        for rule in (await self.cluster.list(kind)).items:
            await self.cluster.patch(kind, rule.metadata.name, {"metadata": {"finalizers": None}})
            await self.cluster.delete(kind, rule.metadata.name)

    async def kill(self):
        """At one of its next writes; then another one takes over."""
        self.mortal.at_write(self.mortal.writes + self.random.randint(1, 8), before=self.random.random() < 0.5)
        await self.add_gang()
        await self.harness.sleep(self.random.choice([0.5, 3.0]))
        self.mortal.at_write(0, before=False)
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start_controller()

    # --- while it goes on -------------------------------------------------------------------------------------------------

    def all(self, kind):
        """Objects as they are stored, without a request."""
        return [record.read(kind) for record in list(self.cluster._state.table(kind).objects.values())]

    def stored(self, kind, key, space=SPACE):
        record = self.cluster._state.find(kind, key if not space or "/" in key else f"{space}/{key}")
        return record and record.read(kind)

    async def watch(self, request):
        """Before each request: is a member bound before enough of its gang have their devices?"""
        if request.label == "bind pods/binding":
            found = await self.harness.pod(request.name)
            await self.bind_for(found, request.body)
            gang = gang_name(found)
            if gang and gang not in self.began | self.loose:
                self.problems.append(
                    f"{request.name} is bound before {self.least[gang]} members of {gang} have devices"
                )
        if request.is_write and request.kind in (kinds.RESOURCE_CLAIM, kinds.POD) and not self._noting:
            self._noting = True
            asyncio.get_running_loop().call_soon(self.note_gangs)

    _noting = False

    def note_gangs(self):
        """Which gangs may run now, and which have a member that may run before its gang."""
        self._noting = False
        pods = [found for found in self.all(kinds.POD) if gang_name(found)]
        held = {
            user.uid
            for held in self.all(kinds.RESOURCE_CLAIM)
            if held.status.allocation
            for user in held.status.reserved_for
        }
        having = Counter(
            gang_name(found) for found in pods if found.metadata.uid in held or found.status.phase == "Succeeded"
        )
        self.began = {gang for gang in having if gang in self.began or having[gang] >= self.least[gang]}
        self.loose |= {
            gang_name(found)
            for found in pods
            if is_pending(found) and not found.spec.scheduling_gates and found.metadata.uid not in held
        }

    async def check_over_given(self):
        cards = {
            (each.spec.driver, each.spec.pool.name, device.name): _amount(device.capacity["memory"].value)
            for each in self.all(kinds.RESOURCE_SLICE)
            for device in each.spec.devices
            if device.capacity
        }
        used, holders = Counter(), defaultdict(list)
        for held in self.all(kinds.RESOURCE_CLAIM):
            for result in held.status.allocation.devices.results if held.status.allocation else ():
                card = (result.driver, result.pool, result.device)
                holders[card].append(held.key)
                if result.consumed_capacity:
                    used[card] += _amount(result.consumed_capacity["memory"])
                else:
                    assert len(holders[card]) == 1, f"{card} is given away twice: {holders[card]}"
        for card, amount in used.items():
            assert amount <= cards.get(card, amount), f"{card} is given away twice: {holders[card]}"

    # --- in the end -----------------------------------------------------------------------------------------------------

    async def come_to_rest(self):
        self.trouble.heal()
        self.mortal.at_write(0, before=False)
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start_controller()
        await self.let_go()
        if self.random.random() < 0.7:
            await self.nodes_come_back()
            await self.come_back()
        await self.harness.sleep(REST)

    async def judge(self):
        await self.check_over_given()
        self.check_quota()
        self.problems += self.idle_holders()
        self.problems += await self.drift()
        before = self.places()
        await self.harness.stop(self.task)
        self.start_controller()
        await self.harness.sleep(RESTART)
        self.problems += [f"a restart changes {line}" for line in _differences(before, self.places())]
        assert not self.problems, "\n".join(self.problems)

    def idle_holders(self):
        """Devices that a pod holds at rest and that no running pod uses."""
        pods = {found.metadata.uid: found for found in self.all(kinds.POD)}
        found = []
        for held in self.all(kinds.RESOURCE_CLAIM):
            users = [pods.get(user.uid) for user in held.status.reserved_for]
            if held.status.allocation and not any(user is not None and is_bound(user) for user in users):
                names_ = [user.key if user is not None else "a pod that is gone" for user in users]
                found.append(f"{held.key} is allocated at rest for {names_}, and none of them runs")
        return found

    def places(self):
        devices = {
            held.key: sorted(result.device_id for result in held.status.allocation.devices.results)
            for held in self.all(kinds.RESOURCE_CLAIM)
            if held.status.allocation
        }
        pods = (found for found in self.all(kinds.POD))
        return {found.key: (found.spec.node_name, [devices.get(key) for key in claim_keys(found)]) for found in pods}

    async def drift(self):
        """In what the running controller differs from one that has just read the same objects."""
        live = self.harness.controller
        if self.task.done():
            self.task.result()  # Endless
        assert live.is_leading
        inventory = Inventory(profiles=live.settings.drivers.profiles)
        version = await self.cluster.version()
        inventory.set_version(version.major, version.minor)
        rules = await taint_rule_kind(self.cluster)
        informers = Informers(self.cluster, inventory, self.harness.clock, rules)
        informers.gangs.set_version(version.major, version.minor)
        reading = asyncio.create_task(informers.run())
        try:
            await informers.wait_synced()
            context = Context(
                self.cluster, None, informers, inventory, live.settings, self.harness.clock, None, live.metrics
            )
            assumed = AssumedPods(context, ClaimWriter(context))
            for found in informers.pods.store:
                assumed.refresh(found)
            now, fresh = state_of(live.inventory, live.informers.gangs), state_of(inventory, informers.gangs)
            now["decisions"], fresh["decisions"] = (
                {str(number): _decided(each, self.probe(number)) for number in range(6)}
                for each in (live.inventory, inventory)
            )
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        return [f"{part}: kept {line}" for part in now for line in _differences(now[part], fresh[part])]

    def probe(self, number):
        """A pod that nobody created, and what would be asked about it."""
        source, self.random = self.random, random.Random(number * 7919 + self.number)
        body = self.new_pod(f"probe-{number}", claims=["probe"], gated=False)
        self.random = source
        body["metadata"] |= {"uid": f"probe-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        spec = claim_spec(SIZES[number % 3], count=1 + number % 2)
        wanted = {"metadata": {"name": "probe", "namespace": SPACE, "uid": f"claim-{number}"}, "spec": spec}
        return SchedulingRequest(
            pod=_read(kinds.POD, body),
            claims=(PodClaim("c0", _read(kinds.RESOURCE_CLAIM, wanted)),),
            policies=Policies(),
        )


# --- the state of a controller ---------------------------------------------------------------------------------------------


def state_of(inventory, gangs):
    """What decisions depend on, by name, so that the order of events does not show."""
    nodes = inventory.nodes
    present = [row for row in range(nodes.size) if nodes.present[row]]

    def placed(each):
        return each.node, dict(each.pod.metadata.labels), each.pod.spec.containers

    return {
        "usage": {
            str(device): (use.exclusive, use.shares, {name: amount for name, amount in use.consumed.items() if amount})
            for device, use in inventory.usage.uses().items()
        },
        "used": {
            (nodes.names[row], resource): int(nodes.used(resource)[row])
            for resource in ("cpu", "memory", "pods")
            for row in present
        },
        "assumed": {each.pod.key: placed(each) for each in inventory._pods.unbound()},
        "bound": {each.pod.key: placed(each) for each in inventory._pods._bound.values()},
        "quotas": {
            name: {key: value for key, value in inventory.quotas.used(name).items() if value}
            for name in inventory.quotas.namespaces
        },
        "gangs": {str(key): _gang(gangs.state(key)) for key in gangs.keys()},  # noqa: SIM118 (no mapping),
    }


def _gang(state):
    members = sorted((found.key, is_pending(found)) for found in state.members)
    return (
        state.min_count,
        members,
        state.bound,
        state.succeeded,
        state.uid,
        state.problem,
        [(each.key, each.required) for each in state.topology],
    )


def _decided(inventory, request):
    answer = decide(inventory, request, Options(managed=MANAGED))
    if isinstance(answer, Decision):
        return answer.node, [entry.allocation for entry in answer.allocations]
    return answer.nodes


def _differences(one, other):
    return [
        f"{key}: {one.get(key)!r}, afresh {other.get(key)!r}"
        for key in sorted({*one, *other}, key=str)
        if one.get(key) != other.get(key)
    ]


def _read(kind, body):
    found, problem = read_object(kind, msgspec.json.encode({"apiVersion": kind.api_version, "kind": kind.name, **body}))
    assert not problem, problem
    return found


def _amount(text):
    return Quantity.parse(str(text)).value()


def gang_name(found):
    group = found.spec.scheduling_group
    if group is not None:
        return group.pod_group_name
    labels = found.metadata.labels
    return labels.get(NAME_LABEL, "") or labels.get(KUEUE_LABEL, "")


# --- one life --------------------------------------------------------------------------------------------------------------


class _Circles:
    """Ends a life in which time stands still, or that is evaluated far too often."""

    def __init__(self):
        self.turns = self.evaluations = 0
        self.now = -1.0
        self.ended = False
        self._select = virtual_time._Jumping.select
        self._evaluate = SchedulingCycle._evaluate_guarded

    def select(self, selector, timeout=None):
        if selector.now > self.now + 1.0:
            self.now, self.turns = selector.now, 0
        self.turns += 1
        if self.turns > _TURNS_AT_ONCE:
            self.end(f"{self.turns} turns of the event loop within a second")
        return self._select(selector, timeout)

    def evaluate(self, cycle, key, now):
        self.evaluations += 1
        if self.evaluations > _EVALUATIONS:
            self.end(f"{self.evaluations} evaluations, the last one of {key}")
        self._evaluate(cycle, key, now)

    def end(self, why):
        if not self.ended:
            self.ended = True
            raise Endless(why)


def live(seed, steps=30, life=Life, **options):
    """Play the life of this seed. `options`: of `play`. Raises AssertionError with what is wrong in the end, or Endless."""
    random.seed(seed)  # the jitter of back-offs
    lives, circles, unfit = [], _Circles(), scheduler.unfit

    def unfit_with_volumes(pod, wanted, node, used):
        return unfit(pod, wanted, node, used) or lives[0].volume_problem(pod, node.metadata.name)

    async def story(harness):
        lives.append(life(harness, seed))
        await lives[0].run(steps)

    try:
        with (
            patch.object(scheduler, "unfit", unfit_with_volumes),
            # in every other life the first attempts at a decision are too short for most searches
            patch.object(cycle, "FIRST_ATTEMPT", 5 if seed % 2 else 5_000),
            patch.object(virtual_time._Jumping, "select", lambda *arguments: circles.select(*arguments)),  # noqa: PLW0108
            patch.object(SchedulingCycle, "_evaluate_guarded", lambda *arguments: circles.evaluate(*arguments)),  # noqa: PLW0108
        ):
            play(story, nodes=0, controller=False, **options)
    except BaseException as error:
        error.add_note("\n".join(["", *lives[0].story]))
        raise
