"""`fair-share`, and the `fgd` it is compared with, against slow oracles written from docs/design/packing.md, in exact fractions.

A random cluster takes random jobs through the real `decide`. Beside it a model keeps what is left of every card; for each job the
values of all nodes that fit must be those that the model says, the best of them is chosen, ties by name, and the card is the best.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.inventory.card_grid import CardGrid
from controller.scoring import free_capacity
from controller.scoring import ranking as rankings
from controller.scoring.free_capacity import card_grid_of
from controller.scoring.policies import Packing
from hack.bench import packing_fgd
from hack.bench.packing_fgd import FgdRanker
from hack.bench.packing_replay import Cluster, Policy, policy_of
from hack.bench.packing_trace import Job, Machine, Trace

THETA, LEFT = Fraction(65, 100), Fraction(1, 2)
SLIGHT = 1e-5
"""Cards are counted in millionths."""

machines = st.lists(
    st.builds(
        Machine,
        name=st.just("m"),
        cpu=st.sampled_from([16_000, 64_000, 96_000]),
        memory=st.sampled_from([65_536, 262_144]),
        cards=st.sampled_from([0, 1, 2, 4, 8]),
        model=st.sampled_from(["A", "B"]),
    ),
    min_size=2,
    max_size=5,
)
shares = st.builds(
    Job,
    cpu=st.sampled_from([0, 2_000, 6_000, 12_000]),
    memory=st.sampled_from([1_024, 30_720]),
    cards=st.just(1),
    milli=st.sampled_from([50, 230, 320, 470, 650, 810, 1000]),
    models=st.sampled_from([(), (), ("A",), ("A", "B")]),
)
wholes = st.builds(
    Job, st.sampled_from([2_000, 24_000]), st.just(8_192), st.sampled_from([2, 4]), st.just(1000), st.just(())
)
plain = st.builds(Job, st.sampled_from([1_000, 8_000]), st.just(4_096), st.just(0), st.just(0), st.just(()))
jobs = st.lists(st.one_of(shares, shares, wholes, plain), min_size=1, max_size=25)


class Host:
    """One node of the model. `cards`: what is left of each; exact."""

    def __init__(self, name, machine):
        self.name, self.machine = name, machine
        self.cards = [Fraction(1)] * machine.cards
        self.cpu, self.memory = machine.cpu, machine.memory

    def fits(self, job):
        if job.cpu > self.cpu or job.memory > self.memory:
            return False
        if job.models and self.machine.model not in job.models and job.cards:
            return False
        part = Fraction(job.milli, 1000)
        return sum(left >= part for left in self.cards) >= job.cards

    def sets(self, job):
        """Every choice of cards, as tuples of indices: only for one card; several are whole, the first idle ones."""
        part = Fraction(job.milli, 1000)
        able = [index for index, left in enumerate(self.cards) if left >= part]
        if job.cards == 1:
            return [(index,) for index in able]
        return [tuple(able[: job.cards])]

    def after(self, job, chosen):
        other = Host(self.name, self.machine)
        other.cards = [
            left - Fraction(job.milli, 1000) if index in chosen else left for index, left in enumerate(self.cards)
        ]
        other.cpu, other.memory = self.cpu - job.cpu, self.memory - job.memory
        return other

    # -- fair-share

    def stranded(self):
        free, number = sum(self.cards), len(self.cards)
        by_cpu = self.cpu * number / (THETA * self.machine.cpu)
        by_memory = self.memory * number / (THETA * self.machine.memory)
        return free - min(free, by_cpu, by_memory)

    def partial(self):
        return sum(left for left in self.cards if 0 < left < 1)

    def cost(self, before):
        return (
            self.stranded()
            - before.stranded()
            + self.partial()
            - before.partial()
            + LEFT * sum(self.cards) / 8
            + Fraction(1, 20) * Fraction(self.cpu, 128_000)
        )

    def tightest(self, job):
        """The card that `fair-share` takes: a used one before an idle one, the least left, the lowest index."""
        part = Fraction(job.milli, 1000)
        return min(
            self.sets(job),
            key=lambda chosen: (
                (job.cards == 1 and part < 1 and self.cards[chosen[0]] == 1, self.cards[chosen[0]] - part, chosen)
                if chosen
                else 0
            ),
        )

    # -- fgd

    def fragment(self, typical, bare):
        total = sum(self.cards)
        found = bare * total
        for frequency, job in typical:
            part = Fraction(job.milli, 1000)
            able = [left for left in self.cards if left >= part] if self._type(job) else []
            if len(able) < job.cards or self.cpu < job.cpu:
                found += frequency * total
            else:
                found += frequency * sum(left for left in self.cards if left < part)
        return found

    def _type(self, job):
        return not job.models or self.machine.model in job.models


def model_of(trace, cluster):
    names = [name for name in cluster.inventory.nodes.names if name]
    by_rank = dict(zip(names, trace.machines, strict=True))
    return {name: Host(name, machine) for name, machine in by_rank.items()}


def a_trace(found):
    return Trace("t", tuple(Machine(f"m{n}", m.cpu, m.memory, m.cards, m.model) for n, m in enumerate(found)), ())


class Watched(Cluster):
    """Keeps the ranking of the last decision."""

    def place(self, job, **options):
        options_before, self.ranking = self._options, None

        def watch(*arguments):
            self.ranking = options_before.rank_nodes(*arguments)
            return self.ranking

        self._options = replace(options_before, rank_nodes=watch)
        try:
            return super().place(job, **options)
        finally:
            self._options = options_before

    def value(self, name):
        return float(self.ranking.values[self.inventory.nodes.index_of(name)])


def taken(cluster):
    return tuple(
        int(result["device"].removeprefix("gpu-"))
        for each in cluster.last.allocations
        for result in each.allocation["devices"]["results"]
    )


@settings(max_examples=12, deadline=None)
@given(machines, jobs, st.integers(0, 3))
def test_fair_share_is_what_the_page_says(found, arriving, seed):
    trace = a_trace(found)
    cluster = Watched(trace, policy_of("fair-share"), seed)
    hosts = model_of(trace, cluster)
    for job in arriving:
        able = {name: host for name, host in hosts.items() if host.fits(job)}
        number = cluster.place(job)
        assert (number is not None) == bool(able)
        if not able:
            continue
        costs = {name: host.after(job, host.tightest(job)).cost(host) for name, host in able.items()}
        for name, cost in costs.items():
            assert cluster.value(name) == pytest.approx(-float(cost), abs=SLIGHT)
        best = min(costs.values())
        assert float(costs[cluster.last.node] - best) < SLIGHT
        equal = [name for name, cost in costs.items() if cost == best]
        if len(equal) > 1 and cluster.last.node in equal:
            assert cluster.last.node == min(equal)
        host = hosts[cluster.last.node]
        assert tuple(sorted(taken(cluster))) == host.tightest(job)
        hosts[cluster.last.node] = host.after(job, taken(cluster))


def learnt(cluster, typical):
    """Makes the cluster believe that these are the typical requests: (frequency, job)."""
    card_grid_of(cluster.inventory)
    for number in range(200):
        job = typical[number % len(typical)]
        cluster.publish(*cluster.pod_of(job, 10_000 + number))
    return cluster.fgd.ground.refresh().typical


@settings(max_examples=12, deadline=None)
@given(machines, st.lists(shares, min_size=1, max_size=4, unique=True), jobs, st.integers(0, 3))
def test_fgd_is_what_the_page_says(found, typical, arriving, seed):
    trace = a_trace(found)
    cluster = Watched(trace, policy_of("fgd"), seed)
    hosts = model_of(trace, cluster)
    known = learnt(cluster, typical)
    assert float(known.frequency.sum()) + known.bare == pytest.approx(1.0)
    for job in arriving:
        able = {name: host for name, host in hosts.items() if host.fits(job)}
        if cluster.place(job) is None:
            assert not able
            continue
        by_number = [
            (Fraction(float(frequency)), Job(int(cpu), 0, int(count), milli, models))
            for frequency, cpu, count, (milli, models) in zip(
                known.frequency, known.cpu, known.count, wanted(known), strict=True
            )
        ]
        scores = {name: fgd_scores(host, job, by_number, Fraction(known.bare)) for name, host in able.items()}
        for name, low_high in scores.items():
            low = min(low for low, _ in low_high) if not low_high else max(low for low, _ in low_high)
            high = max(high for _, high in low_high)
            assert low <= math.floor(cluster.value(name)) <= high
        chosen = hosts[cluster.last.node]
        hosts[cluster.last.node] = chosen.after(job, taken(cluster))


def wanted(known):
    """(milli, models) of each typical request, from its view."""
    for view, _, _ in known._requests:
        memory = view.capacity_requests.get("memory")
        milli = int(memory.removesuffix("M")) * 1000 // 16_000 if memory else 1000
        models = tuple(
            part for selector in view.selectors for part in selector.expression.split('"') if part in {"A", "B"}
        )
        yield milli, models


def fgd_scores(host, job, typical, bare):
    """(lowest, highest) integer that the score of each choice of cards may be rounded to."""
    before = host.fragment(typical, bare)
    found = []
    for chosen in host.sets(job):
        gain = float(before - host.after(job, chosen).fragment(typical, bare))
        found.append(tuple(int(100 / (1 + math.exp(-(gain + slight)))) for slight in (-SLIGHT, SLIGHT)))
    return found


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    machines, jobs, st.sampled_from(["fair-share", "fgd", "fair-share:rare=0.5,large=0.5", "binpack:rare=1"]), st.data()
)
def test_by_difference_is_as_from_scratch(found, arriving, policy, data):
    trace = a_trace(found)
    cluster = Watched(trace, policy_of(policy), 1)
    if policy == "fgd":
        jobs_seen = [Job(6_000, 1_024, 1, 470, ()), Job(2_000, 1_024, 1, 810, ("A",)), Job(0, 1_024, 2, 1000, ())]
        settled = learnt(cluster, jobs_seen)
        settled.refresh = lambda: settled  # what is typical is not asked here, and changes with the pods
    running = []
    for job in arriving:
        number = cluster.place(job)
        kept = cluster.ranking.values.copy()
        # what was kept is what a new set of columns says
        again = fresh_values(cluster, job, policy_of(policy)) if number is None else None
        if again is not None:
            assert np.array_equal(kept, again)
        if number is not None:
            running.append(number)
        if running and data.draw(st.booleans()):
            cluster.leave(running.pop(data.draw(st.integers(0, len(running) - 1))))
        both = ask(cluster, job, policy_of(policy)), fresh_values(cluster, job, policy_of(policy))
        assert np.array_equal(*both)


def ask(cluster, job, policy: Policy):
    """The values of all nodes for one more such job, without placing it."""
    number = cluster.place(job)
    values = cluster.ranking.values.copy()
    if number is not None:
        cluster.leave(number)
    return values


def fresh_values(cluster, job, policy):
    """The same with everything forgotten that was kept, what is typical apart."""
    forgotten = CardGrid(cluster.inventory.devices, cluster.inventory.nodes)
    options = cluster._options
    with pytest.MonkeyPatch.context() as patch:
        for module in (rankings, packing_fgd, free_capacity):
            patch.setattr(module, "card_grid_of", lambda _: forgotten.refresh())
        if cluster.fgd is not None:
            again = FgdRanker(cluster.inventory)
            again.shapes, again.ground.typical = cluster.fgd.shapes, cluster.fgd.ground.typical
            patch.setattr(cluster, "_options", replace(options, rank_nodes=again))
        return ask(cluster, job, policy)


def test_same_input_same_answer():
    trace = a_trace([Machine("m", 96_000, 262_144, 8, "A")] * 3)
    arriving = [Job(4_000, 1_024, 1, milli, ()) for milli in (470, 810, 230, 1000, 320, 650)] * 3
    for policy in ("fair-share", "fgd"):
        runs = []
        for _ in range(2):
            cluster = Cluster(trace, policy_of(policy), 3)
            runs.append([(cluster.place(job), cluster.last.node, taken(cluster)) for job in arriving])
        assert runs[0] == runs[1]


def test_equal_nodes_go_by_name_and_equal_cards_by_index():
    trace = a_trace([Machine("m", 96_000, 262_144, 4, "A")] * 4)
    for policy in ("fair-share", "fgd"):
        cluster = Cluster(trace, policy_of(policy), 5)
        cluster.place(Job(4_000, 1_024, 1, 470, ()))
        assert cluster.last.node == min(cluster.inventory.nodes.names)
        assert taken(cluster) == (0,)


def test_weights_are_the_defaults_of_the_page():
    assert (Packing().theta, Packing().left) == (float(THETA), float(LEFT))
