"""Settings of a controller by the names of single settings, whatever group they are in."""

from dataclasses import fields, replace
from typing import Any

from controller.reconcile.runtime.settings import DriverSettings, Settings


def controller_settings(**changes: Any) -> Settings:
    """`controller_settings(managed=frozenset({"gpu.example.com"}), gate_patience=0.5)`."""
    own = {each.name for each in fields(DriverSettings)}
    drivers = {name: value for name, value in changes.items() if name in own}
    settings = Settings(drivers=DriverSettings(**drivers))
    groups = [each.name for each in fields(Settings)]
    for name, value in changes.items():
        if name not in own:
            (group,) = (each for each in groups if name in {field.name for field in fields(getattr(settings, each))})
            settings = replace(settings, **{group: replace(getattr(settings, group), **{name: value})})
    return settings
