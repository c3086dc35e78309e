"""ResourceQuotas by the hundreds, with hundreds of keys each: what one says is read once, however many are beside it.

A namespace's limits were read again from all of its quotas at each change of one: 300 of them took minutes, in pieces of seconds.
"""

import random

import pytest

from controller.inventory import quota_limits, quotas
from controller.inventory.quotas import QuotaBook
from hami_dra.vendors.registry import QUOTA_NAMES
from tests.support.quotas import quota_object

QUOTAS, KEYS = 300, 150
KNOWN = [key.removeprefix("limits.") for key in sorted(QUOTA_NAMES)]


def unlike(chance, key):
    """A key of the same letters, for which a similar one is looked for."""
    letters = list(key.replace("/", "").replace(".", ""))
    chance.shuffle(letters)
    return f"{''.join(letters)}/x"


HARD = {
    "keys that are nearly ours": lambda chance, number: {unlike(chance, chance.choice(KNOWN)): 1 for _ in range(KEYS)},
    "ours": lambda chance, number: dict.fromkeys(KNOWN, number + 1),
    "amounts that are none": lambda chance, number: dict.fromkeys(KNOWN, "x"),
    "scopes": lambda chance, number: dict.fromkeys(KNOWN, 1),
}


@pytest.fixture
def read(monkeypatch):
    """The quotas that were read, one after the other; keys were compared with ours."""
    found, compared = [], []
    limits_of, matches = quotas.limits_of, quota_limits.get_close_matches

    def noted(quota):
        found.append(quota.key)
        return limits_of(quota)

    def counted(*arguments, **options):
        compared.append(arguments[0])
        return matches(*arguments, **options) if len(compared) < KEYS else []

    monkeypatch.setattr(quotas, "limits_of", noted)
    monkeypatch.setattr(quota_limits, "get_close_matches", counted)
    return found, compared


@pytest.mark.parametrize("spaces", [1, QUOTAS])
@pytest.mark.parametrize("hard", HARD)
def test_each_quota_is_read_once_however_many_there_are(hard, spaces, read):
    chance = random.Random(0)
    book = QuotaBook(lambda uid: (), lambda device: None)
    scopes = {"scopes": ["NotTerminating"]} if hard == "scopes" else {}
    objects = [
        quota_object(HARD[hard](chance, number), f"q{number}", f"space-{number % spaces}", **scopes)
        for number in range(QUOTAS)
    ]
    for each in objects:
        book.quota_changed(None, each)
        book.quota_changed(each, each)  # only its status, which is not read
    found, compared = read
    assert len(found) == QUOTAS
    assert len(compared) <= QUOTAS * quota_limits._MOST_COMPARED
    limits = sum(len(book.limits(f"space-{number}")) for number in range(spaces))
    assert limits == (QUOTAS * len(KNOWN) if hard == "ours" else 0)
    assert len(book.problems) == (0 if hard in ("ours", "keys that are nearly ours") else QUOTAS)
    for each in objects:
        book.quota_changed(each, None)
    assert (len(found), book.problems, book.namespaces, book._quotas) == (QUOTAS, {}, [], {})
