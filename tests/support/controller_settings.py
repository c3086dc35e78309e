"""Settings of a controller by the names of single settings, whatever group they are in."""

from typing import Any

from msgspec.structs import replace

from controller.reconcile.runtime.settings import DriverSettings, Settings


def controller_settings(**changes: Any) -> Settings:
    """`controller_settings(managed=frozenset({"gpu.example.com"}), gate_patience=0.5)`."""
    own = DriverSettings.__struct_fields__
    drivers = {name: value for name, value in changes.items() if name in own}
    settings = Settings(drivers=DriverSettings(**drivers))
    groups = Settings.__struct_fields__
    for name, value in changes.items():
        if name not in own:
            (group,) = (each for each in groups if name in getattr(settings, each).__struct_fields__)
            settings = replace(settings, **{group: replace(getattr(settings, group), **{name: value})})
    return settings
