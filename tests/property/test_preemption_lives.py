"""Random lives of clusters that preempt: who is evicted, who gets what is freed, and what is left in the end.

Each life is one of `tests.support.lives` with other steps. Besides what is judged there:

- nobody is evicted for a pod of equal or lower priority, or while something protects it, and no pod is deleted;
- what goes as a whole has gone as a whole, unless its leader died or the API server refused an eviction;
- a place is lost to nobody of lower or equal priority;
- on a node that is held back nobody gets a place but pods that all state that they are preemptible, and members that a
  gang lacks of which some run;
- at rest no place is held, no plan is missed, and no pod without a place is nominated.

`make soak` plays 1,000 lives, others each time. A life that fails is played again by its seed::

    HAMI_DRA_LIVES=259 .venv/bin/pytest -q tests/property/test_preemption_lives.py
"""

import asyncio
import os
import random
from contextlib import contextmanager, suppress
from typing import Final
from unittest.mock import patch

import pytest

from controller.preemption import Tenants
from controller.preemption.preempt import PreemptionPlan
from controller.preemption.tenants import seconds_of, started
from controller.reconcile.preemption import Evictor, Preemptor, reservations
from controller.reconcile.scheduling_cycle import SchedulingCycle
from hami_dra.api import kinds, names
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_live, is_pending, priority
from hami_dra.kube.protocol import AlreadyExists, Conflict, Forbidden, NotFound, Protected, Unavailable
from tests.support.examples import SOAK
from tests.support.harness import SPACE
from tests.support.life_themes import LETTING_GO, NODES, SIZES
from tests.support.lives import SETTINGS, Life, gang_name, live

LIVES: Final = 1_000 if SOAK else 20
FIRST: Final = random.randrange(2**32) if SOAK else 0
KNOWN: Final = (710056,)
"""A gang whose nominations were on their way while its place moved: it moved for ever."""
BLOCKS: Final = 4
PRIORITIES: Final = (-10, 0, 0, 0, 10, 10, 1000, 2000)


class Preempting(Life):
    """Pods of many priorities, and all that may go wrong between the plan for one of them and its start."""

    themes_of_all = ()

    def __init__(self, harness, seed):
        super().__init__(harness, seed)
        options = [
            {},
            {},
            {"preemption_pdb": True},
            {"evictions_per_minute": 10},
            {"preemption_delay": 5.0},
            {"save_after": 20.0},
        ]
        self.options = self.random.choice(options)
        self.evicted = {}
        """UID of a victim → all that go with it, and the evictor that asked for its eviction."""
        self.refused = set()
        """UIDs of victims whose eviction was refused."""
        self.nominators = {}
        """UID of a pod that waits for its place → the evictor that nominated it."""
        self.considered = {}
        """Unit → what was asked about it last."""
        self.reserves = True
        self.seed = seed
        self.spares = random.Random(f"spares {seed}").random() < 0.4
        """Whether nodes are held back. Drawn apart, so that the other lives are as ever."""

    def settings(self):
        return {**SETTINGS, "preemption": True, "reconsider": 1e9, **self.options}

    def steps(self):
        return [
            (self.add_single, 16), (self.add_gang, 7), (self.add_shared, 4), (self.delete_pod, 4), (self.make_again, 3),
            (self.finish, 2), (self.relabel_pod, 2), (self.cordon, 2), (self.taint, 1), (self.node_goes, 2), (self.slice_changes, 2),
            (self.lose_fence, 1), (self.budget, 5), (self.stick, 6), (self.let_go, 4), (self.urgent, 8),
            (self.fault, 5), (self.refuse, 4), (self.outage, 4), (self.slow_answers, 1), (self.lag, 2), (self.close_watches, 2),
            (self.kill, 5), (self.rest, 4), *([(self.hold_back, 5), (self.lose_member, 6)] if self.spares else []),
        ]  # fmt: skip

    def trouble_steps(self):
        return super().trouble_steps() | {
            self.refuse, self.cordon, self.taint, self.node_goes, self.slice_changes, self.relabel_pod, self.hold_back,
        }  # fmt: skip

    async def run(self, steps):
        budgets = asyncio.create_task(self.count_budgets())
        try:
            await super().run(steps)
        finally:
            budgets.cancel()

    # --- steps --------------------------------------------------------------------------------------------------------

    def new_pod(self, name, **options):
        body = super().new_pod(name, **options)
        annotations = body["metadata"]["annotations"]
        for chance, key, values in (
            (0.08, names.PREEMPTIBLE, ["false"]),
            (0.12, names.MIN_RUNTIME, ["5s", "40s", "100s"]),
            (0.10, names.PREEMPTION_DELAY, ["3s", "20s"]),
        ):
            if self.random.random() < chance:
                annotations[key] = self.random.choice(values)
        body["spec"]["priority"] = self.random.choice(PRIORITIES)
        if self.random.random() < 0.05:
            body["spec"]["preemptionPolicy"] = "Never"
        if self.spares and random.Random(f"{self.seed} {name.partition('-')[0]}").random() < 0.4:
            annotations[names.PREEMPTIBLE] = "true"  # of all members of its gang
        if self.calm:  # kube-scheduler binds pods that have their devices by what else they ask for
            body["spec"].pop("affinity", None)
            body["spec"].pop("topologySpreadConstraints", None)
            body["spec"]["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "1m"}}}]
        return body

    async def nodes_come_back(self):
        await super().nodes_come_back()
        if self.spares:
            await self.label_spare(NODES[-1], "true")

    async def hold_back(self):
        """A node, or no longer."""
        await self.label_spare(self.random.choice(NODES), self.random.choice(["true", "true", None]))

    async def label_spare(self, node, value):
        await self.harness.patch_node(node, {"metadata": {"labels": {names.SPARE: value}}})

    async def lose_member(self):
        """A gang is to be repaired: a member that runs is replaced."""
        found = await self.a_pod(lambda each: is_bound(each) and is_live(each) and gang_name(each))
        await self.harness.delete_pod(found.metadata.name)
        body = self.bodies[found.metadata.name]
        self.number += 1
        gang = found.metadata.name.partition("-")[0]
        meta = {**body["metadata"], "name": f"{gang}-again{self.number}"}
        await self.create({**body, "metadata": meta, "spec": {**body["spec"], "priority": 3000}})

    async def urgent(self):
        """Rather one that finds no room."""
        self.number += 1
        body = self.new_pod(f"u{self.number}", templates=[f"t{self.random.choice(SIZES[1:])}"], gated=True)
        body["spec"]["priority"] = self.random.choice([1000, 2000, 3000])
        await self.create(body)

    async def stick(self):
        """Pods that will not end at once."""
        for _ in range(self.random.choice([1, 2, 4])):
            found = await self.a_pod(lambda each: is_bound(each) and is_live(each))
            patch_ = {"metadata": {"finalizers": [LETTING_GO]}}
            await self.cluster.patch(kinds.POD, found.metadata.name, patch_, namespace=SPACE)

    async def rest(self):
        await self.harness.sleep(self.random.choice([20.0, 45.0, 70.0, 130.0]))

    async def budget(self):
        """One for the pods of an app, another one, or none."""
        if self.random.random() < 0.3:
            await self.cluster.delete(kinds.POD_DISRUPTION_BUDGET, "budget", namespace=SPACE)
            return
        spec = {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": self.random.choice([0, 1, 2])}
        with suppress(AlreadyExists):
            await self.harness.add(
                kinds.POD_DISRUPTION_BUDGET, {"metadata": {"name": "budget", "namespace": SPACE}, "spec": spec}
            )
            return
        await self.cluster.patch(kinds.POD_DISRUPTION_BUDGET, "budget", {"spec": spec}, namespace=SPACE)

    async def count_budgets(self):
        """Do what the disruption controller does."""
        while True:
            for budget in self.all(kinds.POD_DISRUPTION_BUDGET):
                least = int(budget.spec.min_available or 0)
                meant = [each for each in self.all(kinds.POD) if each.metadata.labels.get("app") == "x"]
                healthy = sum(
                    each.metadata.deletion_timestamp is None
                    and any(held.type == "Ready" and held.status == "True" for held in each.status.conditions)
                    for each in meant
                )
                status = {
                    "disruptionsAllowed": max(healthy - least, 0),
                    "currentHealthy": healthy,
                    "desiredHealthy": least,
                    "expectedPods": len(meant),
                    "disruptedPods": None,
                    "observedGeneration": budget.metadata.generation,
                }
                with suppress(NotFound):
                    await self.cluster.patch(
                        kinds.POD_DISRUPTION_BUDGET, "budget", {"status": status}, namespace=SPACE, subresource="status"
                    )
            await self.harness.sleep(0.5)

    async def refuse(self):
        """An eviction, a nomination, or the removal of a gate fails."""
        verb = self.random.choice(["evict", "evict", "patch"])
        errors = [
            Unavailable("no answer"),
            Conflict("another UID"),
            Protected("the budget allows none"),
            Forbidden("no"),
        ]
        error = self.random.choice(errors)
        applied = isinstance(error, (Unavailable, Conflict)) and self.random.random() < 0.5
        times = self.random.choice([1, 1, 2, 7])
        self.trouble.fail_next(
            error, lambda asked, about: asked == verb and about is kinds.POD, applied=applied, times=times
        )
        await self.urgent()

    async def kill(self):
        self.mortal.at_write(self.mortal.writes + self.random.randint(1, 6), before=self.random.random() < 0.5)
        await self.urgent()
        await self.harness.sleep(self.random.choice([0.5, 3.0]))
        self.mortal.at_write(0, before=False)
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start_controller()

    # --- while it goes on ---------------------------------------------------------------------------------------------

    def asks(self, evictor, hold, victim, together):
        """About to evict."""
        now = self.harness.clock.wall().timestamp()
        if victim.metadata.uid not in self.evicted:
            self.evicted[victim.metadata.uid] = together, evictor
        if not priority(victim) < hold.priority:
            self.problems.append(f"{victim.key} of priority {priority(victim)} is evicted for priority {hold.priority}")
        if victim.metadata.annotations.get(names.PREEMPTIBLE) == "false":
            self.problems.append(f"{victim.key} is evicted although it is not preemptible")
        least = seconds_of(victim.metadata.annotations.get(names.MIN_RUNTIME, "0s"))
        if now - started(victim, now) < least:
            self.problems.append(f"{victim.key} is evicted before its least runtime")

    def gets_a_place(self, placed, gang):
        """About to be committed, or to have it held."""
        nodes, pods = self.harness.controller.informers.nodes.store, [request.pod for request, _ in placed]
        is_repair = gang is not None and 0 < gang.bound < gang.min_count
        for request, decision in placed:
            node = nodes.get(decision.node)
            if node is None or node.metadata.labels.get(names.SPARE) != "true" or request.required_node:
                continue
            together = pods if gang is None else gang.members
            if not is_repair and any(each.metadata.annotations.get(names.PREEMPTIBLE) != "true" for each in together):
                self.problems.append(f"{request.pod.key} gets a place on {decision.node}, which is held back")

    def gives_up(self, hold, why):
        self.story.append(f"    {self.harness.clock.monotonic():.2f} given up: {hold.pods[0].key}: {why}")
        leaving = {each.metadata.uid for each in hold.leaving}
        claims = {key for each in hold.leaving for key in claim_keys(each)}
        joined = [
            each
            for each in self.all(kinds.POD)
            if each.metadata.uid not in leaving and claims.intersection(claim_keys(each))
        ]
        held, gang = {each.metadata.uid for each in hold.pods}, gang_name(hold.pods[0])
        more = [
            each
            for each in self.all(kinds.POD)
            if gang and gang_name(each) == gang and is_pending(each) and each.metadata.uid not in held
        ]
        if self.calm and not joined and not more and "does not fit there any more" in why:
            self.problems.append(f"the place of {hold.pods[0].key} on {hold.nodes} was taken by another pod")

    # --- in the end ---------------------------------------------------------------------------------------------------

    async def come_to_rest(self):
        """Every pod will end that is evicted."""
        for found in self.all(kinds.POD):
            with suppress(NotFound):
                patch_ = {"metadata": {"finalizers": None}}
                await self.cluster.patch(kinds.POD, found.metadata.name, patch_, namespace=SPACE)
        self.reserves = False
        if (term := self.harness.controller._term) is not None:
            for hold in [each for each in term._preemptor._holds if each.slot is not None]:
                term._preemptor._give_up(hold, "others have their turn")
        await super().come_to_rest()

    async def judge(self):
        preemptor = self.harness.controller._term._preemptor
        self.problems += [f"a place is still held for {hold.pods[0].key}" for hold in preemptor._holds]
        self.problems += self.halves(preemptor.evictor)
        self.problems += self.nominated(preemptor.evictor)
        self.problems += self.missed(preemptor)
        await super().judge()

    def halves(self, evictor):
        there = {found.metadata.uid for found in self.all(kinds.POD) if found.metadata.deletion_timestamp is None}
        gone = {uid for uid in self.evicted if uid not in there}
        found = []
        for uid in gone:
            together, asked_by = self.evicted[uid]
            left = [each.key for each in together if each.metadata.uid in there]
            if left and asked_by is evictor and self.refused.isdisjoint(each.metadata.uid for each in together):
                found.append(f"{left} are left of what was evicted as a whole")
        return found

    def nominated(self, evictor):
        """Pods that this evictor nominated and that have no place any more."""
        return [
            f"{found.key} is nominated for {found.status.nominated_node_name} and has no place"
            for found in self.all(kinds.POD)
            if is_pending(found)
            and found.status.nominated_node_name
            and self.nominators.get(found.metadata.uid) is evictor
        ]

    def missed(self, preemptor):
        """Plans for units that wait."""
        found = []
        if not self.settings()["preemption"]:
            return found
        for unit in self.considered.values():
            pods = [self.stored(kinds.POD, request.pod.key) for request in unit.ready]
            if not all(
                now is not None and now.metadata.uid == request.pod.metadata.uid and is_pending(now)
                for now, request in zip(pods, unit.ready, strict=True)
            ):
                continue
            claims = [
                self.stored(kinds.RESOURCE_CLAIM, each.claim.key) for request in unit.ready for each in request.claims
            ]
            if not preemptor._may_hold(unit) or any(claim is None or claim.status.allocation for claim in claims):
                continue
            gang = None if unit.gang is None else self.harness.controller.informers.gangs.state(unit.gang.key)
            if gang is not None and (gang.missing or gang.problem or gang.bound != unit.gang.bound):
                continue  # it was considered as another one
            plan = preemptor._preemption(unit.pod.metadata.namespace).plan(unit.unit)
            if isinstance(plan, PreemptionPlan) and len(plan.victims) <= preemptor._most_victims(unit, plan.devices):
                victims = [each.key for each in plan.victims]
                found.append(f"{unit.pod.key} waits, and would fit on {plan.nodes} without {victims}")
        return found

    async def drift(self):
        informers = self.harness.controller.informers
        fresh = Tenants(informers.gangs, informers.claim)
        assumed = self.harness.controller._term._preemptor.assumed_pods
        for each in informers.pods.store:
            fresh.pod_changed(None, each)
            if is_pending(each) and (node := assumed.pinned_node(each)):
                fresh.arrives(each, node)
        nodes = {each.metadata.name for each in informers.nodes.store}
        devices = self.harness.controller.inventory.devices
        kept, afresh = (
            (
                [column.tolist() for column in tenants.held().columns(devices)],
                {name: (tenants.summary(name), {each.key for each in tenants.on(name)}) for name in nodes},
            )
            for tenants in (informers.tenants, fresh)
        )
        differs = [f"tenants: kept {kept}, afresh {afresh}"] if kept != afresh else []
        return differs + await super().drift()


def reserving_until_rest(lives):
    soonest = reservations.soonest

    def watched(*about):
        return soonest(*about) if lives[0].reserves else None

    return patch.object(reservations, "soonest", watched)


@contextmanager
def watching_places(lives):
    begin, place = Evictor.begin, SchedulingCycle._place

    def watched_begin(evictor, hold):
        gangs = lives[0].harness.controller.informers.gangs
        gang = gangs.of(hold.pods[0])
        lives[0].gets_a_place(hold.placed, None if gang is None else gangs.state(gang))
        begin(evictor, hold)

    def watched_place(cycle, unit, answer):
        lives[0].gets_a_place(answer.placed, unit.gang)
        place(cycle, unit, answer)

    with patch.object(Evictor, "begin", watched_begin), patch.object(SchedulingCycle, "_place", watched_place):
        yield


def preempting_life(seed, steps, life=Preempting):
    lives = []

    class Known(life):
        def __init__(self, harness, seed):
            super().__init__(harness, seed)
            lives.append(self)

    evict, spare, nominate = Evictor._evict, Evictor._spare, Evictor._nominate
    give_up, consider, placed = Preemptor._give_up, Preemptor.consider, Preemptor.placed

    async def watched_nominate(evictor, found, node):
        lives[0].nominators[found.metadata.uid] = evictor
        await nominate(evictor, found, node)

    def watched_placed(preemptor, unit):
        for request in unit.ready:  # it is nominated by its commit from now on
            lives[0].nominators.pop(request.pod.metadata.uid, None)
        placed(preemptor, unit)

    async def watched_evict(evictor, hold, victim, together):
        lives[0].asks(evictor, hold, victim, together)
        return await evict(evictor, hold, victim, together)

    def watched_spare(evictor, hold, victim, problem):
        lives[0].refused.add(victim.metadata.uid)
        spare(evictor, hold, victim, problem)

    def watched_give_up(preemptor, hold, why):
        if preemptor._holds.of(hold.key) is hold:
            lives[0].gives_up(hold, why)
        give_up(preemptor, hold, why)

    def watched_consider(preemptor, unit, digest, refusal):
        lives[0].considered[unit.key] = unit
        return consider(preemptor, unit, digest, refusal)

    with (
        reserving_until_rest(lives),
        watching_places(lives),
        patch.object(Evictor, "_evict", watched_evict),
        patch.object(Evictor, "_spare", watched_spare),
        patch.object(Evictor, "_nominate", watched_nominate),
        patch.object(Preemptor, "placed", watched_placed),
        patch.object(Preemptor, "_give_up", watched_give_up),
        patch.object(Preemptor, "consider", watched_consider),
    ):
        live(seed, steps, life=Known, graceful=True)


@pytest.mark.parametrize("seed", KNOWN)
@pytest.mark.timeout(600)
def test_a_life_that_went_wrong_once(seed):
    preempting_life(seed, steps=40)


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(3600)
def test_the_right_pods_are_evicted_and_nothing_is_missed_or_left_over(block):
    seeds = [FIRST + number for number in range(LIVES) if number % BLOCKS == block]
    if "HAMI_DRA_LIVES" in os.environ:
        seeds = [int(os.environ["HAMI_DRA_LIVES"])] if block == 0 else []
    for seed in seeds:
        try:
            preempting_life(seed, steps=40 if SOAK or "HAMI_DRA_LIVES" in os.environ else 25)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_LIVES={seed}")
            raise
