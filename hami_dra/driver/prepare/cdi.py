"""The CDI file of a claim: one device for each view, and a copy of the claim's record.

Called by `transaction`. In: views, their edits, the record. Out: the document; ids of its devices;
the record again, from a document. Pure.

One file per claim, named after it, so that it can be removed alone and distinguished from the files
of other programs. The kind is `<driver>/claim`. Version 0.6.0 of the format: the lowest that has
everything used here (annotations; containerd 2.0 and later read up to 0.8.0 and more).
https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from hami_dra.api.containers import DeviceNode, Edits, Hook, Tmpfs
from hami_dra.driver.prepare.records import Record

Json = dict[str, Any]

VERSION: Final = "0.6.0"
RECORD: Final = "hami.io/claim-record"
"""Annotation: the `Record`, without the document that contains it. The checkpoint can be rebuilt from it."""
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


_INODES: Final = 1_024


class NotOurs(ValueError):
    """The document has no record that this version can read; the message says why."""


def kind(driver: str) -> str:
    return f"{driver}/claim"


def device_name(uid: str, view: str) -> str:
    return f"{uid}-{view}"


def device_id(driver: str, uid: str, view: str) -> str:
    """Return the name that kubelet and containerd use for the device."""
    return f"{kind(driver)}={device_name(uid, view)}"


def file_name(driver: str, uid: str) -> str:
    return f"{driver}-claim_{uid}.json"


def claim_of(driver: str, file: str) -> str | None:
    """Return the uid of the claim that the file belongs to; None for files of other programs."""
    prefix = f"{driver}-claim_"
    uid = file.removeprefix(prefix).removesuffix(".json")
    return uid if file == f"{prefix}{uid}.json" and is_uid(uid) else None


def is_uid(text: str) -> bool:
    """Return whether the text can be part of the names above."""
    return _UID.fullmatch(text) is not None


def document(driver: str, record: Record, edits: Mapping[str, Edits]) -> Json | None:
    """Return the CDI document. `edits`: by view. None if no view has edits: containerd would refuse an empty device."""
    devices = [
        {"name": device_name(record.uid, view.name), "containerEdits": made}
        for view in record.views
        if (made := container_edits(edits[view.name]))
    ]
    if not devices:
        return None
    return {
        "cdiVersion": VERSION,
        "kind": kind(driver),
        "annotations": {RECORD: _remembered(record)},
        "devices": devices,
    }


def container_edits(edits: Edits) -> Json:
    """Return the edits as JSON; empty if there are none."""
    made: Json = {}
    if edits.env:
        made["env"] = [f"{name}={value}" for name, value in edits.env.items()]
    if edits.device_nodes:
        made["deviceNodes"] = [_device_node(node) for node in edits.device_nodes]
    mounts: list[Json] = [_tmpfs(each) for each in edits.tmpfs]
    mounts += [
        {"hostPath": mount.host, "containerPath": mount.container, "options": list(mount.options)}
        for mount in edits.mounts
    ]
    if mounts:
        made["mounts"] = mounts
    if edits.hooks:
        made["hooks"] = [_hook(hook) for hook in edits.hooks]
    return made


def edits_of(record: Record) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Return the variables of each view of a prepared claim, and its mounts: path in the container → on the host."""
    devices = {each["name"]: each["containerEdits"] for each in record.spec["devices"]} if record.spec else {}
    found = {}
    for view in record.views:
        made = devices.get(device_name(record.uid, view.name))
        if made is not None:
            env = dict(each.split("=", 1) for each in made.get("env", ()))
            mounts = {each["containerPath"]: each["hostPath"] for each in made.get("mounts", ()) if "type" not in each}
            found[view.name] = env, mounts
    return found


def _hook(hook: Hook) -> Json:
    made: Json = {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
    return made | {"env": list(hook.env)} if hook.env else made


def _device_node(node: DeviceNode) -> Json:
    made: Json = {"path": node.path}
    if node.host_path:
        made["hostPath"] = node.host_path
    # the runtime then does not look up the node on the host (cdi: DeviceNode.fillInfo)
    if node.numbers is not None:
        made |= {"type": "c", "major": node.numbers[0], "minor": node.numbers[1]}
    return made | {"permissions": node.permissions}


def _tmpfs(wanted: Tmpfs) -> Json:
    """Return a mount with a type, which the runtime takes as it is (runtime-spec,
    config.md#mounts): `hostPath` is its source.

    Sticky, so that processes of different users cannot remove each other's files; few inodes, for
    they count as kernel memory.
    """
    options = ["rw", "nosuid", "nodev", "noexec", "mode=1777", f"size={wanted.size}", f"nr_inodes={_INODES}"]
    return {"hostPath": "tmpfs", "containerPath": wanted.container, "type": "tmpfs", "options": options}


def undone(smaller: Edits, larger: Edits) -> str:
    """Describe what remains of `smaller` in a container that is given `larger` after it; empty if nothing does."""
    left = [name for name in smaller.env if name not in larger.env]
    left += sorted({node.path for node in smaller.device_nodes} - {node.path for node in larger.device_nodes})
    left += sorted({each.container for each in smaller.tmpfs} - {each.container for each in larger.tmpfs})
    left += sorted({mount.container for mount in smaller.mounts} - {mount.container for mount in larger.mounts})
    left += sorted({" ".join(hook.args) for hook in smaller.hooks} - {" ".join(hook.args) for hook in larger.hooks})
    left += sorted(set(smaller.cdi_devices) - set(larger.cdi_devices))
    return ", ".join(left)


def encoded(found: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def record_of(driver: str, uid: str, text: bytes) -> Record:
    """Return the record in the file of a claim, including the document itself. Raises NotOurs."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        remembered = found["annotations"][RECORD]
        record = msgspec.json.decode(remembered.encode(), type=_Remembered)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise NotOurs(f"it has no readable record of its claim ({error})") from error
    if record.version != _RECORD_VERSION:
        raise NotOurs(f"its record has version {record.version}, and this driver reads {_RECORD_VERSION}")
    if record.record.uid != uid:
        raise NotOurs(f"it is named after claim {uid}, and has the record of {record.record.uid}")
    if found.get("kind") != kind(driver):
        raise NotOurs(f"its kind is {found.get('kind')!r}, not {kind(driver)!r}")
    return replace(record.record, spec=found)


# --- the record -----------------------------------------------------------------------------------

_RECORD_VERSION: Final = 1
_MOST_REMEMBERED: Final = 200 * 1024
"""Characters; containerd takes 256 KiB of annotations (k8s TotalAnnotationSizeLimitB)."""


class _Remembered(msgspec.Struct, frozen=True):
    version: int
    record: Record


def _remembered(record: Record) -> str:
    bare = replace(record, spec=None, state="prepared")
    text = _text(bare)
    if len(text) > _MOST_REMEMBERED:  # very many pods share the claim; their names matter least
        text = _text(replace(bare, views=tuple(replace(view, pods=()) for view in bare.views)))
    return text


def _text(record: Record) -> str:
    return msgspec.json.encode(_Remembered(_RECORD_VERSION, record), order="deterministic").decode()
