"""What the option `--manage-profile` means, of the commands that read devices of drivers hami-dra does not ship.

In: files. Out: `DriverProfiles`. Errors name the file, the field and the fix.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.errors import CommandError

if TYPE_CHECKING:
    from hami_dra.vendors.profiles import DriverProfiles
    from hami_dra.vendors.protocol import DriverProfile


def driver_profiles(files: Sequence[Path]) -> "DriverProfiles":
    """Return the built-in profiles and those in the files. Raises CommandError."""
    from types import MappingProxyType

    from hami_dra.kube.documents import read_documents
    from hami_dra.vendors.driver_profile_file import InvalidDriverProfile, parse_driver_profile
    from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles

    if not files:
        return BUILT_IN_PROFILES
    given: dict[str, DriverProfile] = {}
    sources: dict[str, str] = {}
    for file in files:
        documents = read_documents([file])
        if not documents:
            raise CommandError(f"--manage-profile: {file}: it contains no DriverProfile (docs/driver-profiles.md)")
        for document in documents:
            where = str(file) if len(documents) == 1 else str(document)
            try:
                profile = parse_driver_profile(document.raw)
            except InvalidDriverProfile as error:
                raise CommandError(f"--manage-profile: {where}: {error}") from error
            if profile.driver in given:
                raise CommandError(
                    f"--manage-profile: {where}: driver: {profile.driver} has a profile in "
                    f"{sources[profile.driver]} already; remove one of them"
                )
            given[profile.driver], sources[profile.driver] = profile, where
    return DriverProfiles(MappingProxyType(given))
