"""The container images of tests/node, made here: no registry, no Docker.

Called by node.py. In: images by name, each with its files. Out: an OCI archive that `ctr images
import` takes. The same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

GUEST: Final = "hami-dra.test/guest:1"
PAUSE: Final = "hami-dra.test/pause:1"
CUDA: Final = "hami-dra.test/cuda:1"
"""A program that asks CUDA what memory there is (hack/node/cuda)."""

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"

Document = dict[str, Any]


class Image(NamedTuple):
    files: Mapping[str, bytes]
    """By path, without a slash in front; all of them may be run."""
    entrypoint: str
    arguments: tuple[str, ...] = ()


def of_guest(program: Path) -> dict[str, Image]:
    """Return the images that every node has: one static program (hack/node/programs/guest), as a
    guest and as `pause`.
    """
    files = {"guest": program.read_bytes()}
    return {GUEST: Image(files, "/guest"), PAUSE: Image(files, "/guest", ("--pause",))}


def write_archive(images: Mapping[str, Image], archive: Path) -> None:
    """Write the images into one archive, under their names."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> Document:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        blobs[f"blobs/{digest.replace(':', '/')}"] = content
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def manifest_of(name: str, image: Image) -> Document:
        layers = [blob(_LAYER, _tar(image.files))]
        config = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": [image.entrypoint], "Cmd": list(image.arguments), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": blob(_CONFIG, _json(config)),
            "layers": layers,
        }
        return {**blob(_MANIFEST, _json(manifest)), "annotations": {"io.containerd.image.name": name}}

    manifests = [manifest_of(name, image) for name, image in images.items()]
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
    archive.write_bytes(
        _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs})
    )


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
