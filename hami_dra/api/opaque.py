"""Replacement of unusable opaque parameters with a marker that says why.

The API server stores `config[].opaque.parameters` byte by byte. Claims, templates and classes are
settled here right after they are decoded. Afterwards the parameters decode, encode and mean the
same to every reader, or they are the marker. Code that needs them then refuses the object by name
(`controller.allocation.parameters`, the driver's `prepare.claim`). The object itself
stays readable: what it is allocated still counts.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from hami_dra.api.meta import UNREADABLE
from hami_dra.api.resource import DeviceClass, OpaqueDeviceConfiguration, ResourceClaim, ResourceClaimTemplate
from hami_dra.api.sanitize import is_deeper, is_unicode
from hami_dra.api.short_texts import cached_if_short

MOST_LEVELS: Final = 50
"""Less than half of what `sanitize` leaves, so that parameters cut by it are recognised. Our
drivers' parameters have 1.
"""
_REPLACED: Final = ("\ufffd".encode(), rb"\ufffd")
"""The replacement that Go, and `sanitize`, write for an invalid character."""
_SHORT: Final = 1_024
"""Bytes. A tenant chooses the text, so longer ones are neither remembered nor shared."""
_Entry = tuple[str, OpaqueDeviceConfiguration | None]


def problem_of(parameters: msgspec.Raw) -> str:
    """Return why parameters cannot be used, or "". Accepts the marker, too."""
    text = bytes(parameters)
    return _marked_problem(text) if UNREADABLE.encode() in text else _problem_of(text)


@cached_if_short(1_024, _SHORT)
def _problem_of(text: bytes) -> str:
    if is_deeper(text, MOST_LEVELS):
        return f"nested more than {MOST_LEVELS} levels deep"
    if not is_unicode(text) or any(each in text.lower() for each in _REPLACED):
        return "holds characters that are not Unicode"
    try:
        msgspec.json.encode(msgspec.json.decode(text))
    except (msgspec.ValidationError, OverflowError):
        return "holds a number that no program can keep"
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"is not JSON: {error}"
    return ""


class _Marker(msgspec.Struct):
    problem: str = msgspec.field(default="", name=UNREADABLE)


def _marked_problem(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Marker).problem or _problem_of(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _problem_of(text)


# --- settling -------------------------------------------------------------------------------------


def settle_claim(claim: ResourceClaim) -> str:
    """Mark unusable parameters. Returns the problems, by path, or ""."""
    allocation = claim.status.allocation
    if not claim.spec.devices.config and (allocation is None or not allocation.devices.config):
        return claim.spec.unreadable
    allocated = allocation.devices.config if allocation is not None else ()
    entries = _entries("spec.devices", claim.spec.devices.config)
    return "; ".join(
        filter(None, (claim.spec.unreadable, _settled([*entries, *_entries("status.allocation.devices", allocated)])))
    )


def settle_template(template: ResourceClaimTemplate) -> str:
    """Mark unusable parameters; see `settle_claim`."""
    spec = template.spec.spec
    return _settled(_entries("spec.spec.devices", spec.devices.config)) if spec.devices.config else ""


def settle_class(device_class: DeviceClass) -> str:
    """Mark unusable parameters; see `settle_claim`."""
    return _settled(_entries("spec", device_class.spec.config)) if device_class.spec.config else ""


def _entries(path: str, config: Iterable[object]) -> Iterator[_Entry]:
    for index, entry in enumerate(config):
        yield f"{path}.config[{index}].opaque.parameters", getattr(entry, "opaque", None)


def _settled(entries: Iterable[_Entry]) -> str:
    problems = []
    for path, opaque in entries:
        if opaque is None:
            continue
        if problem := problem_of(opaque.parameters):
            text = msgspec.json.encode(_Marker(problem))
            problems.append(f"{path}: {problem}")
        else:
            text = bytes(opaque.parameters)
        # what the decoder returns is a view that keeps a whole page of a list alive
        msgspec.structs.force_setattr(opaque, "parameters", _shared(text))
    return "; ".join(problems)


@cached_if_short(1_024, _SHORT)
def _shared(text: bytes) -> msgspec.Raw:
    return msgspec.Raw(text)
