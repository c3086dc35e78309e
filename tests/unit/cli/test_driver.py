"""The help of `hami-dra driver`."""

from hami_dra.vendors import registry
from tests.support.commands import Typed


def test_the_help_names_every_vendor(capsys, monkeypatch):
    monkeypatch.setattr(registry, "plugin_names", lambda: ("nvidia", "acme"))
    monkeypatch.setenv("COLUMNS", "200")
    assert "none of its cards is found: nvidia, acme." in " ".join(Typed(capsys)("driver", "--help").stdout.split())
