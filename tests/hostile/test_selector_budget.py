"""C3: selectors have a budget, one evaluation, expression, claim and namespace at a time, and nothing holds up the loop for long."""

import pytest

from controller.decide import decide
from controller.inventory.selector_budget import OverBudget, Payer, SliceSpent
from controller.reconcile.queueing.selector_budgets import NamespaceWaits, SelectorBudgets, content_of
from controller.reconcile.runtime.metrics import Metrics
from controller.reconcile.runtime.settings import SelectorLimits
from hami_dra.api import kinds
from hami_dra.cel import SHORT, CostLimitExceeded, DeviceInput, EvaluationError, Selector, compile_selector
from tests.cards import claim as card_claim
from tests.cards import request
from tests.hostile.counted_work import CountedWork
from tests.support.harness import DRIVER, SPACE, claim, play, pod
from tests.unit.cel.test_limits import HOSTILE, grown

DEVICE = DeviceInput.of("d.io", {"name": {"string": "T4"}})
LIMITS = SelectorLimits()
MINUTE = 60.0


# --- one evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_too_expensive_for_kubernetes_is_so_for_the_controller(expression):
    with pytest.raises(CostLimitExceeded):
        compile_selector(expression).evaluate(DEVICE, SHORT)


@pytest.mark.timeout(20)
def test_walks_through_nested_lists_are_counted():
    """Each of these walks takes 65,536 steps, which cost nothing in Kubernetes: 400 of them took ten seconds."""
    walks = " || ".join(["[dyn({0})].includes(1)"] * 400)
    nested = compile_selector(grown("dyn([])", "[dyn({0}), dyn({0})]", walks, times=17))
    with pytest.raises(EvaluationError, match="cost limit"):
        nested.evaluate(DEVICE)


def test_honest_selectors_stay_far_below_the_limit():
    uuids = ", ".join(f'"GPU-{number}"' for number in range(200))
    for expression in (
        f'device.attributes["d.io"].name in [{uuids}]',
        " || ".join(f'device.attributes["d.io"].name == "GPU-{number}"' for number in range(100)),
        'device.attributes["d.io"].name.matches("^(NVIDIA )?(A10|T4)[A-Z]*$")',
        'device.attributes["d.io"].exists(key, key.startsWith("na"))',
    ):
        compile_selector(expression).evaluate(DEVICE, SHORT)


# --- the accounts --------------------------------------------------------------------------------------------------------


class Accounts:
    """`SelectorBudgets` with a clock of its own."""

    def __init__(self, limits=LIMITS):
        self.now = 0.0
        self.book = SelectorBudgets(limits, lambda: 0.0, Metrics())

    def look(self, namespace="evil", content=b"claims"):
        return self.book.of(namespace, lambda: content, self.now)

    def spend(self, expression, seconds, *, payer=Payer.CLAIM, left=1, **who):
        """One look at a pod in which one expression takes so long, with devices left. Returns why it ended."""
        budget = self.look(**who)
        try:
            budget.admit(expression, payer)
            budget.charge(expression, payer, seconds, done=1, left=left)
        except (OverBudget, SliceSpent) as why:
            return why
        return None


def test_a_slice_ends_and_the_next_look_goes_on():
    accounts = Accounts()
    assert accounts.spend("a", LIMITS.slice / 2) is None
    assert isinstance(accounts.spend("a", LIMITS.slice), SliceSpent)


def test_an_expression_that_takes_too_long_is_refused_by_its_content_whoever_asks():
    accounts = Accounts()
    for _ in range(10):
        why = accounts.spend("a", LIMITS.expression / 9, content=b"one")
    assert isinstance(why, OverBudget)
    assert "a selector may take 1 s" in why.overrun.what
    assert isinstance(accounts.spend("a", 0.0, namespace="other", content=b"two"), OverBudget)
    assert accounts.spend("b", 0.0, namespace="other", content=b"two") is None


def test_what_is_known_of_all_devices_is_forgiven():
    accounts = Accounts()
    for number in range(50):
        budget = accounts.look(namespace=f"team-{number}", content=b"%d" % number)
        for left in (1, 0):
            with pytest.raises(SliceSpent):
                budget.charge("a", Payer.CLAIM, LIMITS.expression / 3, done=1, left=left)
        budget.decided()


def test_a_claim_of_many_expressions_has_one_budget():
    accounts = Accounts()
    ends = [accounts.spend(f"a{number}", LIMITS.claim / 15, left=0) for number in range(16)]
    assert isinstance(ends[-1], OverBudget)
    assert "the selectors of one pod may take 2 s" in ends[-1].overrun.what
    assert not any(isinstance(each, OverBudget) for each in ends[:-1])
    assert isinstance(accounts.spend("another of its selectors", 0.0), OverBudget)
    assert accounts.spend("a0", 0.0, namespace="other", content=b"other claims") is None


def test_the_pause_doubles_from_a_minute_to_an_hour():
    accounts = Accounts()
    pauses = []
    for _ in range(9):
        why = accounts.spend("a", LIMITS.expression * 1.1, namespace=f"n{accounts.now}", content=b"%f" % accounts.now)
        pauses.append((why.overrun.until - accounts.now) / MINUTE)
        accounts.now = why.overrun.until - 1
        assert isinstance(accounts.spend("a", 0.0), OverBudget), "not before it is over"
        accounts.now += 1
        assert not isinstance(accounts.spend("a", 0.0), OverBudget)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_namespace_waits_once_it_has_used_its_minute_and_no_other_does():
    accounts = Accounts()
    for number in range(20):
        content = b"%d" % number
        why = accounts.spend(f"a{number}", LIMITS.namespace / 15, left=0, content=content)
    assert isinstance(why, NamespaceWaits)
    assert accounts.spend("b", 0.001, namespace="honest", left=0, content=b"honest") is None
    accounts.now = why.until
    assert not isinstance(accounts.spend("c", 0.0, content=b"c"), NamespaceWaits)
    accounts.now += MINUTE
    for number in range(14):
        assert not isinstance(
            accounts.spend(f"d{number}", LIMITS.namespace / 15, left=0, content=b"d%d" % number), NamespaceWaits
        )


def test_selectors_of_a_class_cost_no_tenant_anything():
    accounts = Accounts()
    for number in range(8):
        assert isinstance(accounts.spend(f"class {number}", 1.0, payer=Payer.CLASS, left=0), SliceSpent)
    assert accounts.spend("a", 0.0) is None
    ends = [accounts.spend("slow class", 1.0, payer=Payer.CLASS) for _ in range(11)]
    assert isinstance(ends[-1], OverBudget)
    assert accounts.spend("slow class", 0.0) is None, "the same text in a claim is another selector"


def test_a_claim_is_known_by_its_selectors_and_not_by_its_name():
    one, two = (card_claim(name, [request(selectors=["b", "a"])]) for name in ("x", "y"))
    assert content_of([one]) == content_of([two])
    assert content_of([one]) != content_of([card_claim("x", [request(selectors=["a"])])])


# --- in the controller ---------------------------------------------------------------------------------------------------


class Work(CountedWork):
    """CPU time that passes only while selectors are evaluated: `each` seconds a device."""

    def __init__(self, monkeypatch, each):
        super().__init__()
        evaluate = Selector.evaluate

        def counted(selector, *args):
            if "uuid" in selector.expression:
                self.seconds += each
            return evaluate(selector, *args)

        monkeypatch.setattr(Selector, "evaluate", counted)


def selecting(name, count):
    """A claim with so many selectors that no two cards answer alike."""
    made = claim(name)
    made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": f"device.attributes['hami.io'].uuid != '{name}-{number}'"}} for number in range(count)
    ]
    return made


async def add_cards(harness, count):
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"hami.io/uuid": {"string": f"GPU-{number}"}},
            "capacity": {"memory": {"value": "16Gi"}},
            "allowMultipleAllocations": True,
        }
        for number in range(count)
    ]
    pool = {"name": "cards", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "n0", "pool": pool, "devices": devices}
    await harness.add(kinds.RESOURCE_SLICE, {"metadata": {"name": "cards"}, "spec": spec})


def test_an_expensive_claim_is_refused_with_an_event_and_others_are_placed_meanwhile(monkeypatch):
    work = Work(monkeypatch, each=0.01)

    async def story(harness):
        work.watch(harness)
        await add_cards(harness, 64)
        await harness.add(kinds.RESOURCE_CLAIM, selecting("big", 20), claim("small"))
        await harness.add(
            kinds.POD, pod("hog", claims=["big"], gated=True), pod("honest", claims=["small"], gated=True)
        )
        await harness.bound("honest", seconds=2)
        await harness.sleep(30)
        assert harness.controller.informers.pod(f"{SPACE}/hog").spec.scheduling_gates, "kube-scheduler is spared it"
        [reported] = await harness.events("SelectorOverBudget")
        assert "ResourceClaim default/big: request card: selectors[" in reported["note"]
        assert "the selectors of one pod may take 2 s" in reported["note"]
        assert "tries again in 60 s" in reported["note"]
        assert work.seconds < 2.1
        assert work.longest < 0.05
        # made again under another name it costs nothing
        before = work.seconds
        renamed = selecting("big", 20)
        renamed["metadata"]["name"] = "again"
        await harness.add(kinds.RESOURCE_CLAIM, renamed)
        await harness.add(kinds.POD, pod("hog-again", claims=["again"], gated=True))
        await harness.sleep(10)
        assert work.seconds == before
        assert len(await harness.events("SelectorOverBudget")) == 2

    play(story, nodes=1, decide=decide, quiet_time=0.0, probe=False)


def test_a_claim_that_takes_several_turns_is_placed_in_the_end(monkeypatch):
    work = Work(monkeypatch, each=0.005)

    async def story(harness):
        work.watch(harness)
        await add_cards(harness, 40)
        await harness.add(kinds.RESOURCE_CLAIM, selecting("careful", 5))
        await harness.add(kinds.POD, pod("p", claims=["careful"], gated=True))
        await harness.bound("p", seconds=10)
        assert 0.9 < work.seconds < 1.1, "each selector was evaluated once on each device"
        assert harness.metric("hami_dra_decision_seconds_count", result="unfinished") > 20
        assert harness.metric("hami_dra_selector_cpu_seconds_total", payer="claim") == pytest.approx(1.0, rel=0.1)

    play(story, nodes=1, decide=decide, quiet_time=0.0, probe=False)
