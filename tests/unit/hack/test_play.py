"""hack/play.py without a cluster: what `make cluster` installs."""

from types import SimpleNamespace

import pytest

from hack import installation, play
from hack.controlplane import detached


class Reached(Exception):
    """The part that is looked at is over."""


def test_only_labelled_namespaces_are_converted_as_with_the_chart(monkeypatch, tmp_path):
    said = []
    host = SimpleNamespace(api=SimpleNamespace(patch=lambda path, body: said.append((path, body))), state=None)

    def no_fleet(state):
        raise Reached

    monkeypatch.setattr(detached, "up", lambda *_, **__: None)
    monkeypatch.setattr(play, "DetachedHost", lambda state: host)
    monkeypatch.setattr(play, "_fleet_file", no_fleet)
    monkeypatch.setattr(
        installation, "Installation", lambda host: SimpleNamespace(install=lambda **values: said.append(values))
    )
    with pytest.raises(Reached):
        play._bring_up("x", "1.37.1")
    assert said == [
        {"namespace_selector": "hami.io/webhook=enabled"},
        ("/api/v1/namespaces/default", {"metadata": {"labels": {"hami.io/webhook": "enabled"}}}),
    ]
