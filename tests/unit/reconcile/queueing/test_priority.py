"""A pod of higher priority never loses what becomes free to a newcomer of lower priority, whatever else happens around it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.queueing_hints import ANY, News
from controller.reconcile.queueing.refused_groups import Rank
from hami_dra.api import kinds
from tests.support.examples import examples
from tests.support.harness import play, pod, template
from tests.unit.reconcile.gang_stories import QUICK, prepare

TICK = 0.01


class Cards:
    """A queue before some cards: each pod takes one, and keeps it until an event frees it."""

    def __init__(self, free, **options):
        self.queue = Queue(**options)
        self.free = free
        self.now = 0.0
        self.priorities = {}
        self.waiting = set()
        self.trials = 0

    def newcomer(self, kind, priority):
        key = f"team/{len(self.priorities)}-{kind}"
        self.priorities[key] = priority
        self.waiting.add(key)
        self.queue.ready(key, Rank(-priority, f"{len(self.priorities):06}", key), changed=True)

    def event(self, *, frees):
        """Something happens that may help everybody; only some of it does."""
        self.free += frees
        self.queue.room_made(self.now, News(ANY))

    def settle(self):
        """Decide on all pods whose turn it is. Return who got a card before a pod of higher priority that waited."""
        inverted = []
        while (key := self.queue.pop(self.now)) is not None:
            self.trials += 1
            self.queue.charge(0.0)
            signature = key.rpartition("-")[2].encode()
            if self.queue.is_known_full(signature):
                self.queue.no_room(key, signature)
            elif self.free:
                self.free -= 1
                self.waiting.discard(key)
                self.queue.placed(key)
                above = [each for each in self.waiting if self.priorities[each] > self.priorities[key]]
                inverted += [(key, above)] * bool(above)
            else:
                self.queue.no_room(key, signature, refused_at=self.now)
        return inverted


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("freed"), st.integers(0, 2)),
        st.tuples(st.just("time"), st.sampled_from([TICK, 0.1, 1.5])),
    ),
    max_size=60,
)


@settings(max_examples=examples(100), deadline=None)
@given(EVENTS)
def test_nobody_of_lower_priority_takes_a_card_that_a_waiting_pod_could_have(events):
    cards = Cards(0)
    for event in events:
        if event[0] == "pod":
            cards.newcomer(f"k{event[1]}", event[2])
        elif event[0] == "freed":
            cards.event(frees=event[1])
        else:
            cards.now += event[1]
        assert cards.settle() == []


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 20), st.integers(10, 40), st.integers(0, 3))
def test_attempts_before_newcomers_at_most_double_the_trials(groups, newcomers, freed):
    """Many kinds of high priority wait, and every newcomer comes with an event that may help them all."""
    cards, early = Cards(0), []
    cards.queue._attempts_left = 1
    end_pauses = cards.queue._end_pauses_above
    cards.queue._end_pauses_above = lambda *where: (ended := end_pauses(*where)) and not early.append(1) and ended
    for number in range(groups):
        cards.newcomer(f"h{number}", 10 + number)
    cards.settle()
    for number in range(newcomers):
        cards.event(frees=freed if number == newcomers // 2 else 0)
        cards.newcomer(f"l{number}", 0)
        cards.settle()
        cards.now += TICK / 10
    assert early, "or this says nothing"
    assert len(early) <= cards.trials - len(early) + 1


def test_the_end_of_a_pause_is_not_before_the_news_for_a_pod_of_higher_priority():
    """The cycle asks `is_outranked` before it holds news back (for a burst of events)."""
    cards = Cards(0)
    cards.newcomer("low", 0)
    cards.settle()
    cards.event(frees=0)
    cards.now += TICK
    cards.newcomer("high", 5)
    cards.settle()
    assert not cards.queue.is_outranked(cards.now)
    assert cards.queue.is_outranked(cards.now + 1.0)


def test_a_refused_pod_takes_the_turn_of_an_equal_one_of_lower_priority():
    cards = Cards(0)
    cards.newcomer("kind", 0)
    cards.settle()
    cards.now += 1.0
    cards.queue.room_made(cards.now, News(ANY))  # the first one is to be tried again
    cards.newcomer("kind", 5)
    key = cards.queue.pop(cards.now)
    assert cards.priorities[key] == 5
    cards.queue.no_room(key, b"kind", refused_at=cards.now)
    cards.event(frees=1)
    assert cards.settle() == []
    assert key not in cards.waiting


def test_a_long_decision_is_not_repeated_before_its_rest():
    """What a big gang costs is bounded by time, and no newcomer changes that."""
    cards = Cards(0)
    cards.newcomer("gang", 5)
    key = cards.queue.pop(0.0)
    cards.queue.no_room(key, b"gang", refused_at=30.0)
    cards.event(frees=1)
    cards.newcomer("small", 0)
    assert "small" in cards.queue.pop(0.1)


def test_a_freed_card_goes_to_the_high_priority_while_claims_come_and_go_elsewhere():
    trials = 6

    async def story(harness):
        harness.start(**QUICK)
        await prepare(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("tiny", 1))
        await harness.add(kinds.POD, *(pod(f"b{number}", templates=["whole"], gated=True) for number in range(4)))
        await harness.bound("b0", "b1", "b2", "b3")
        await harness.add_node("other", cards=1, memory=4)
        holder, number = "b0", 0
        for trial in range(trials):
            await harness.add(kinds.POD, pod(f"high{trial}", templates=["whole"], gated=True, priority=1000))
            for _ in range(15):
                number += 1
                await harness.add(kinds.POD, pod(f"c{number}", templates=["tiny"], gated=True))
                await harness.sleep(0.1)
                await harness.delete_pod(f"c{number}")
            await harness.delete_pod(holder)
            await harness.sleep(trial % 3 * 0.01)
            await harness.add(kinds.POD, pod(f"low{trial}", templates=["whole"], gated=True, cpu="50m"))
            holder = f"high{trial}"
            await harness.bound(holder, seconds=5)
            await harness.delete_pod(f"low{trial}")

    play(story, controller=False)
