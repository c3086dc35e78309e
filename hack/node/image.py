"""The container images of tests/node, made here: no registry, no Docker. One static program, twice: as a guest and as `pause`.

Called by node.py. In: the program (hack/node/guest, built by hack/controlplane/build.py). Out: an OCI archive that
`ctr images import` takes. The same program gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any, Final

GUEST: Final = "hami-dra.test/guest:1"
PAUSE: Final = "hami-dra.test/pause:1"

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"

Document = dict[str, Any]


def write_archive(program: Path, archive: Path) -> None:
    """Both images in one archive, under their names."""
    layer = _tar({"guest": program.read_bytes()})
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> Document:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        blobs[f"blobs/{digest.replace(':', '/')}"] = content
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def image(name: str, arguments: list[str]) -> Document:
        layers = [blob(_LAYER, layer)]
        config = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/guest"], "Cmd": arguments, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": blob(_CONFIG, _json(config)),
            "layers": layers,
        }
        return {**blob(_MANIFEST, _json(manifest)), "annotations": {"io.containerd.image.name": name}}

    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [image(GUEST, []), image(PAUSE, ["--pause"])]}
    archive.write_bytes(
        _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs})
    )


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
