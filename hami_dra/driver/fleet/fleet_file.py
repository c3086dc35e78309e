"""Fleet files on disk: read with errors that name the field, and followed while they change.

Called by `hami-dra slices --fleet`, by `make cluster` and by the bench. In: a path. Out: a
FleetFile, or a fleet that follows it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hami_dra.api.config import FleetFile, FleetNodes, FleetTopology, NodeTaint, problems_of
from hami_dra.api.errors import ConfigError
from hami_dra.driver.fleet.nodes import sharing_settings
from hami_dra.driver.fleet.run import Fleet
from hami_dra.kube.documents import BadDocument, read_documents
from hami_dra.vendors.publishing import Unpublishable

Version = tuple[int, int]
"""Time of the last change in nanoseconds, and size."""

log = logging.getLogger(__name__)


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet file. Raises ConfigError, which names file, field and fix."""
    try:
        documents = read_documents([path])
    except BadDocument as error:
        raise ConfigError(str(error)) from error
    if len(documents) != 1:
        raise ConfigError(f"{path}: holds {len(documents)} objects; a fleet file is one object of kind Fleet")
    return parse_fleet(documents[0].raw, str(path))


def parse_fleet(raw: Mapping[str, Any], source: str) -> FleetFile:
    """Parse a fleet. `source` is named in errors."""
    try:
        file = FleetFile.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(
            f"{source}: {problems_of(error, [FleetFile, FleetNodes, FleetTopology, NodeTaint], '(file)')}"
        ) from error
    groups = ((f"nodes.{number}.", group.sharing or {}) for number, group in enumerate(file.nodes))
    for where, sharing in (("", file.sharing), *groups):
        try:
            sharing_settings(sharing)
        except Unpublishable as error:
            raise ConfigError(f"{source}: {where}{error}") from error
    return file


async def follow(
    fleet: Fleet, path: Path, since: Version | None = None, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Update the fleet whenever the file changes, until cancelled. An invalid file is reported and changes nothing.

    `since`: the version that the fleet was created from, taken before it was read; None: the
    current one.
    """
    seen = version_of(path) if since is None else since
    while True:
        await sleep(1.0)
        now = version_of(path)
        if now == seen:
            continue
        seen = now
        try:
            fleet.update(read_fleet(path))
        except ConfigError as error:
            log.warning("the fleet stays as it is: %s", error)
        else:
            log.info("%s changed: the fleet follows", path)


def version_of(path: Path) -> Version | None:
    """Return the version of a file, which changes with its content; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
