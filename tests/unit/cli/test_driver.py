"""`hami-dra driver`: its help, and the options that vendors declare."""

from types import SimpleNamespace

import typer

from controller.cli.vendor_options import DriverCommand, vendor_settings
from hami_dra.api.options import VendorOption, text
from hami_dra.vendors import registry
from hami_dra.vendors.nvidia.options import CORE_LIMITS, USAGE_CACHE, Keeping
from hami_dra.vendors.options import SLOTS
from tests.support.commands import Typed


def test_the_help_names_every_vendor(capsys, monkeypatch):
    monkeypatch.setattr(registry, "plugin_names", lambda: ("nvidia", "acme"))
    monkeypatch.setenv("COLUMNS", "200")
    assert "none of its devices is found: nvidia, acme." in " ".join(Typed(capsys)("driver", "--help").stdout.split())


def test_every_option_of_a_vendor_is_a_flag_and_is_read_by_its_vendor(monkeypatch, capsys):
    """A third vendor's own option needs nothing but its declaration."""
    level = VendorOption(name="acme-level", default="low", read=text, choices=("low", "high"), help="Level of care.")
    acme = SimpleNamespace(title="Acme")
    monkeypatch.setattr(registry, "OPTIONS", {**registry.OPTIONS, level: (acme,)})
    seen = {}

    def run(context: typer.Context) -> None:
        seen["settings"] = vendor_settings(context)

    app = typer.Typer()
    app.command(cls=DriverCommand)(run)
    app(["--acme-level", "high", "--slots", "3", "--no-core-limits"], standalone_mode=False)
    found = seen["settings"]
    assert (found[level], found[SLOTS], found[CORE_LIMITS], found[USAGE_CACHE]) == ("high", 3, False, Keeping.PRIVATE)
    monkeypatch.setenv("COLUMNS", "200")
    shown = Typed(capsys)("driver", "--help").stdout
    assert "Options for devices of Acme" in shown
    assert "Options for devices of NVIDIA, MetaX" in shown


def test_a_value_that_an_option_does_not_allow_is_refused_by_its_flag(capsys):
    for words, problem in (
        (("--slots", "0"), "--slots: 0 is not a whole number from 1 to 1000000"),
        (("--memory-scaling", "x"), "--memory-scaling: 'x' is not a number such as 1.5"),
        (("--usage-cache-size", "1Mi"), "--usage-cache-size: 1Mi is not between 4Mi and 1Gi"),
        (("--driver-root", "run"), "--driver-root: 'run' is not an absolute path"),
    ):
        typed = Typed(capsys)("driver", "--node", "n1", *words)
        assert (typed.code, typed.stderr.strip()) == (2, f"hami-dra: {problem}")
