"""Which pod comes next, and whom an event wakes."""

from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.queueing_hints import ANY, News
from controller.reconcile.queueing.refused_groups import FOREVER, Rank


def rank(key, priority=0, created="2026-01-01T00:00:00Z"):
    return Rank(-priority, created, key)


def drain(queue, now=0.0):
    keys = []
    while (key := queue.pop(now)) is not None:
        keys.append(key)
    return keys


def test_higher_priority_first_then_older_then_by_name():
    queue = Queue()
    queue.ready("b", rank("b"))
    queue.ready("a", rank("a"))
    queue.ready("old", rank("old", created="2025-01-01T00:00:00Z"))
    queue.ready("urgent", rank("urgent", priority=10, created="2027-01-01T00:00:00Z"))
    assert drain(queue) == ["urgent", "old", "a", "b"]


def test_a_pod_is_ready_once_however_often_it_is_said():
    queue = Queue()
    for _ in range(3):
        queue.ready("a", rank("a"))
    assert drain(queue) == ["a"]
    assert "a" in queue.keys_in("held")


def test_a_waiting_pod_comes_back_at_its_time_and_not_before():
    queue = Queue()
    queue.ready("a", rank("a"))
    queue.pop(0.0)
    queue.wait("a", until=5.0)
    assert queue.pop(4.9) is None
    assert queue.next_timer() == 5.0
    assert queue.pop(5.0) == "a"
    assert queue.next_timer() == FOREVER


def test_an_event_beats_the_timer_and_voids_it():
    queue = Queue()
    queue.ready("a", rank("a"))
    queue.pop(0.0)
    queue.wait("a", until=5.0)
    queue.ready("a", rank("a"))
    assert drain(queue) == ["a"]
    queue.wait("a")
    assert queue.pop(6.0) is None


def refuse_all(queue, keys, signature=b"s"):
    for key in keys:
        queue.ready(key, rank(key))
    for key in drain(queue):
        queue.no_room(key, signature)


def test_room_lets_only_the_first_of_a_group_try():
    queue = Queue()
    refuse_all(queue, ["a", "b", "c"])
    queue.room_made(0.0, News(ANY))
    assert drain(queue) == ["a"]
    queue.no_room("a", b"s")
    assert drain(queue) == []


def test_the_next_of_a_group_follows_when_one_was_placed():
    queue = Queue()
    refuse_all(queue, ["a", "b", "c"])
    queue.room_made(0.0, News(ANY))
    for expected in ("a", "b", "c"):
        assert queue.pop(0.0) == expected
        queue.placed(expected)
    assert queue.waiting()[0].total() == 0


def test_the_group_does_not_starve_when_its_scout_goes_waits_or_asks_for_something_else():
    for leave in ("drop", "wait", "change"):
        queue = Queue()
        refuse_all(queue, ["a", "b"])
        queue.room_made(0.0, News(ANY))
        assert queue.pop(0.0) == "a"
        if leave == "drop":
            queue.drop("a")
        elif leave == "wait":
            queue.wait("a")
        else:
            queue.no_room("a", b"other")
        assert queue.pop(0.0) == "b", leave


def test_news_about_room_while_a_scout_is_out_are_not_lost():
    queue = Queue()
    refuse_all(queue, ["a", "b"])
    queue.room_made(0.0, News(ANY))
    queue.room_made(0.0, News(ANY))
    assert drain(queue) == ["a"]
    queue.room_made(0.0, News(ANY))  # a is being decided on
    queue.no_room("a", b"s")
    queue.room_made(0.0, News(ANY))
    assert drain(queue) == ["a"]


def test_an_equal_pod_is_known_to_be_refused_until_room_is_made():
    queue = Queue()
    refuse_all(queue, ["a"])
    assert queue.is_known_full(b"s")
    assert not queue.is_known_full(b"other")
    queue.room_made(0.0, News(ANY))
    assert not queue.is_known_full(b"s")


def test_groups_are_tried_side_by_side_by_rank():
    queue = Queue()
    refuse_all(queue, ["a", "b"], b"one")
    refuse_all(queue, ["c"], b"two")
    queue.room_made(0.0, News(ANY))
    assert drain(queue) == ["a", "c"]


def test_states_are_counted():
    queue = Queue()
    refuse_all(queue, ["a", "b"])
    queue.ready("c", rank("c"))
    assert (len(queue.keys_in("no_room")), len(queue.keys_in("ready")), queue.waiting()[0].total()) == (2, 1, 3)
    assert queue.keys_in("no_room") == ["a", "b"]
    queue.drop("a")
    assert "a" not in queue
    queue.wait("gone")
    queue.no_room("gone", b"s")
    assert queue.waiting()[0].total() == 2
