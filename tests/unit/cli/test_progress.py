"""Progress on stderr: only of what takes long."""

import io

import pytest

from controller.cli.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_what_is_over_soon_says_nothing(clock, capsys):
    with Progress(clock=clock, terminal=False) as progress:
        for step in range(20):
            clock.now = step * 0.1
            progress("placing", step, 20)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_where_there_is_no_terminal(clock, capsys):
    with Progress(clock=clock, terminal=False) as progress:
        for step in range(300):
            clock.now = step * 0.1
            progress("placing", step, 300)
        progress("reading", 7, 0)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_that_is_gone_afterwards(clock, capsys, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(clock=clock, terminal=True) as progress:
        progress("placing", 1, 4)
        assert screen.getvalue() == ""
        clock.now = 3.0
        progress("placing", 2, 4)
        progress("reading", 3, 0)
    assert "placing" in screen.getvalue()
    assert capsys.readouterr().out == ""
