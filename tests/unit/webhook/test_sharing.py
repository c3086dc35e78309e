"""Which containers share a request: those that never run side by side."""

from controller.webhook.sharing import Role, share
from hami_dra.vendors.legacy import LegacyRequest

GIB = 1 << 30


def cards(count=1, memory=None, *, cores=0, percent=None, priority=None):
    capacity = {"cores": cores} | ({"memory": memory * GIB} if memory is not None else {})
    return LegacyRequest(count, capacity, percent, priority)


def test_nobody_asks():
    assert share([]).requests == ()


def test_an_init_container_joins_whoever_covers_it_already():
    sharing = share([(Role.INIT, cards(1, 4)), (Role.APP, cards(1, 2)), (Role.APP, cards(2, 8))])
    assert sharing.requests == (cards(1, 2), cards(2, 8))
    assert sharing.request_of == (1, 0, 1)


def test_an_init_container_joins_where_the_fewest_cards_are_added():
    sharing = share([(Role.INIT, cards(3, 4)), (Role.APP, cards(1, 2)), (Role.APP, cards(2, 2))])
    assert sharing.requests == (cards(1, 2), cards(3, 4))
    assert sharing.request_of == (1, 0, 1)


def test_the_first_of_equals():
    sharing = share([(Role.INIT, cards(1, 4)), (Role.APP, cards(1, 2)), (Role.APP, cards(1, 2))])
    assert sharing.request_of == (0, 0, 1)


def test_nobody_joins_a_sidecar():
    sharing = share([(Role.SIDECAR, cards(4, 8)), (Role.INIT, cards(1, 1))])
    assert sharing.requests == (cards(4, 8), cards(1, 1))
    assert sharing.alone == ()


def test_an_init_container_that_fits_nobody_is_alone_and_others_like_it_join_it():
    sharing = share([(Role.INIT, cards(percent=10)), (Role.INIT, cards(percent=20)), (Role.APP, cards(1, 1))])
    assert sharing.requests == (cards(1, 1), cards(percent=20))
    assert sharing.request_of == (1, 1, 0)
    assert sharing.alone == (0,)


def test_joining_takes_the_larger_of_everything_and_the_higher_priority():
    assert cards(1, 2, cores=50, priority=1).joined(cards(2, 1, cores=10, priority=0)) == cards(
        2, 2, cores=50, priority=0
    )
    assert cards(1, 2).joined(cards(1)) == cards(1)
    assert cards(percent=30).joined(cards(1, cores=100)) == cards(1, cores=100)
    assert cards(percent=30).joined(cards(1, 1)) is None


def exact(count, cores):
    return LegacyRequest(count, {"neuroncores": cores}, exact=True)


def test_whole_cards_of_one_size_stay_whole():
    """10 NeuronCores are five whole devices of two."""
    assert exact(5, 2).joined(exact(5, 2)) == exact(5, 2)
    assert exact(5, 2).joined(exact(7, 2)) == exact(7, 2)
    assert share([(Role.INIT, exact(5, 2)), (Role.APP, exact(7, 2))]).requests == (exact(7, 2),)


def test_whole_cards_cover_parts_that_are_no_larger():
    for part in (LegacyRequest(1, {"neuroncores": 1}), LegacyRequest(1, {"neuroncores": 2}), LegacyRequest(1)):
        assert exact(5, 2).joined(part) == exact(5, 2)
        assert part.joined(exact(5, 2)) == exact(5, 2)


def test_whole_cards_of_one_size_do_not_compare_with_what_is_larger():
    assert exact(5, 2).joined(LegacyRequest(1, {"neuroncores": 4})) is None
    assert exact(5, 2).joined(exact(5, 4)) is None
    assert exact(5, 2).joined(LegacyRequest(1, {}, memory_percent=50)) is None


def test_a_capacity_that_one_of_two_leaves_out_is_all_of_it():
    assert LegacyRequest(1, {"slices": 2}).joined(LegacyRequest(1, {})) == LegacyRequest(1, {})
