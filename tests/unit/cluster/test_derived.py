"""Derived columns and their log readers: the examples in their docstrings, and what a failed update leaves."""

import doctest

import pytest

from controller.cluster.incremental import changes, derived_column


def test_the_examples_hold():
    assert doctest.testmod(derived_column).failed == 0


class Picky(derived_column.DerivedColumns):
    def __init__(self, log):
        super().__init__(log)
        self.seen = []
        self.fails = False

    def _grow(self):
        return 3

    def _update(self, rows, /):
        if self.fails:
            raise RuntimeError
        self.seen.append(rows.tolist())


def test_an_update_that_fails_is_repeated():
    log = changes.ChangeLog()
    columns = Picky(log)
    columns.refresh()
    log.add(2)
    columns.fails = True
    with pytest.raises(RuntimeError):
        columns.refresh()
    columns.fails = False
    log.add(0)
    columns.refresh()
    columns.refresh()
    assert columns.seen == [[0, 1, 2], [0, 2]]


def test_what_the_log_has_forgotten_is_every_row():
    log = changes.ChangeLog()
    columns = Picky(log)
    columns.refresh()
    for _ in range(changes.KEPT + 1):
        log.add(1)
    columns.refresh()
    assert columns.seen[1] == [0, 1, 2]
