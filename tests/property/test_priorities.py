"""Limits of cores hold and priorities work, with tenants that do what HAMi-core's `rate_limiter` does in each version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_dra.api.options import VendorSettings
from hami_dra.vendors.nvidia import priority
from hami_dra.vendors.nvidia.options import PRIORITY_FEEDBACK
from hami_dra.vendors.nvidia.shared_region import Counters
from hami_dra.vendors.nvidia.usage_reader import RegionReader

HOUR = 3600
CARDS = ("a", "b")
SLOWEST = 8
"""Seconds between two launches of a tenant that still counts as active all the time."""


class Region:
    """The counters of a new file (`try_create_shrreg`)."""

    def __init__(self, now):
        self.recent, self.switch, self.last_kernel = 2, 1, now


class Tenant:
    """One process. `launch()` is `pre_launch_kernel` and `rate_limiter` up to where the tokens of its share are taken.

    Returns "limited", "unlimited" or "waits". One that waits does so in the middle of a launch: it begins no other.
    """

    def __init__(self, region, limit):
        self.region, self.limit = region, limit
        self.is_waiting = False

    def launch(self, now):
        if not self.is_waiting:
            self.region.last_kernel = max(self.region.last_kernel, now)
        outcome = self.rate_limiter()
        self.is_waiting = outcome == "waits"
        return outcome

    def tick(self):
        """`utilization_watcher`, every 120 ms."""

    def rate_limiter(self):
        raise NotImplementedError


class UpTo280(Tenant):
    """8be6d90c (v2.7.1), ec8979d1 (v2.8.0)."""

    def rate_limiter(self):
        if self.region.recent < 0:
            return "waits"
        self.region.recent = 2
        if self.limit in (0, 100) or self.region.switch == 0:
            return "unlimited"
        return "limited"


class From281(Tenant):
    """94fff568 (v2.8.1): the switch as it was when the process began."""

    def __init__(self, region, limit):
        super().__init__(region, limit)
        self.switch = region.switch

    def rate_limiter(self):
        if self.limit in (0, 100) or self.switch == 0:
            return "unlimited"
        if self.region.recent < 0:
            return "waits"
        self.region.recent = 2
        return "limited"


class From283(From281):
    """5091a2fb (v2.8.3, v2.9.0), 8f3a89c: the watcher reads the switch again; before its first time it is 0."""

    def __init__(self, region, limit):
        super().__init__(region, limit)
        self.switch = 0

    def tick(self):
        self.switch = self.region.switch


VERSIONS = [UpTo280, From281, From283]


class Node:
    """Containers, the driver's rounds over their regions, and what each launched since the round before."""

    def __init__(self):
        self.now = 1_800_000_000
        self.reader = RegionReader(VendorSettings.of({PRIORITY_FEEDBACK: True}), lambda: self.now)
        self.tenants = {}
        self.ended = []
        """Priority and cards of those that ended since the last round."""
        self.paces = {}
        """Seconds between two launches of each that works."""
        self.running_since = {}
        """Since when each works and does not wait."""

    def start(self, name, version, limit, importance, cards):
        self.tenants[name] = version(Region(self.now), limit), importance, frozenset(cards)

    def restart(self, name):
        """Another process, with the file that the one before left."""
        tenant, importance, cards = self.tenants[name]
        self.tenants[name] = type(tenant)(tenant.region, tenant.limit), importance, cards

    def end(self, name):
        _, importance, cards = self.tenants.pop(name)
        self.ended.append((importance, cards))
        self.pause(name)

    def work(self, name, pace=1):
        self.paces[name] = pace
        self.running_since.setdefault(name, self.now)

    def pause(self, name):
        self.paces.pop(name, None)
        self.running_since.pop(name, None)

    def round(self):
        """Five seconds of launches, then a round of the driver. Returns what happened to the launches of each tenant."""
        found = {name: set() for name in self.paces}
        for _ in range(int(priority.EVERY)):
            self.now += 1
            for name, (tenant, _, _) in self.tenants.items():
                tenant.tick()
                if name in self.paces and (tenant.is_waiting or self.now % self.paces[name] == 0):
                    found[name].add(tenant.launch(self.now))
                    if tenant.is_waiting:
                        self.running_since[name] = self.now
        told = {}
        for name, (tenant, importance, cards) in self.tenants.items():
            region = tenant.region
            active, recent = self.reader._activity(Counters(1, region.switch, region.recent, region.last_kernel))
            told[name] = priority.Tenant(priority=importance, cards=cards, is_active=active, recent_kernel=recent)
        for name, order in priority.orders(told).items():
            region = self.tenants[name][0].region
            region.recent, region.switch = order.recent_kernel, order.utilization_switch
        return found

    def check(self, found, *, was_running):
        """`was_running`: since when each worked and did not wait, before the round."""
        for name, outcomes in found.items():
            tenant, importance, cards = self.tenants[name]
            if tenant.limit % 100:
                assert "unlimited" not in outcomes, (name, type(tenant))
            more_important = [
                other
                for other, (_, its, there) in self.tenants.items()
                if its < importance and there & cards and other in was_running
            ]
            can_wait = tenant.limit % 100 or isinstance(tenant, UpTo280)
            # one that runs without a pause since two rounds, and its first launch, has been seen in each of them
            settled = 2 * priority.EVERY + SLOWEST
            if can_wait and any(self.now - was_running[other] > settled for other in more_important):
                assert outcomes <= {"waits"}, (name, type(tenant))
            near = [
                other
                for other, (other_tenant, its, there) in self.tenants.items()
                if its < importance
                and there & cards
                and self.now - other_tenant.region.last_kernel <= 4 * priority.EVERY
            ]
            if not near and not any(its < importance and there & cards for its, there in self.ended):
                assert "waits" not in outcomes, (name, type(tenant))
        self.ended.clear()


steps = st.tuples(
    st.sampled_from(["work", "work", "pause", "end", "start", "restart", "rest"]),
    st.integers(0, 5),
    st.sampled_from(VERSIONS),
    st.sampled_from([0, 1, 30, 99, 100]),
    st.integers(0, 2),
    st.sets(st.sampled_from(CARDS), min_size=1),
    st.sampled_from([1, 1, 3, SLOWEST]),
)


@given(script=st.lists(st.lists(steps, max_size=4), min_size=1, max_size=40))
def test_limits_hold_and_priorities_work_for_an_hour(script):
    """Tenants that start, launch at any pace, pause and end, several of them between two rounds."""
    node, begun = Node(), 1_800_000_000
    while node.now - begun < HOUR:
        for changes in script:
            for step, number, version, limit, importance, cards, pace in changes:
                name = f"t{number}"
                if step == "start" and name not in node.tenants:
                    node.start(name, version, limit, importance, cards)
                elif step == "work" and name in node.tenants:
                    node.work(name, pace)
                elif step == "pause" and name in node.tenants:
                    node.pause(name)
                elif step == "restart" and name in node.tenants:
                    node.restart(name)
                elif step == "end" and name in node.tenants:
                    node.end(name)
            before = dict(node.running_since)
            node.check(node.round(), was_running=before)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("limit", [0, 30])
def test_a_tenant_of_high_priority_is_seen_with_and_without_a_limit(version, limit):
    node = Node()
    node.start("high", version, limit, 0, "a")
    node.start("low", version, 30, 1, "a")
    node.work("high")
    node.work("low")
    rounds = [node.round() for _ in range(700)]
    assert all(each["low"] == {"waits"} for each in rounds[1:])
    node.pause("high")
    rounds = [node.round() for _ in range(6)]
    assert rounds[-1]["low"] == {"limited"}


def test_the_reader_decides_by_the_time_of_the_last_kernel():
    reader = RegionReader(VendorSettings(), lambda: 1_000_000.0)
    assert reader._activity(Counters(1, 1, -1, 999_991)) == (True, -1)
    assert reader._activity(Counters(1, 1, 2, 999_980)) == (False, 2)
