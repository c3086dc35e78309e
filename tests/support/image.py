"""The container image, built without Docker and without a registry by hack/image/build.sh, and the address of the API server for
its pods. Used by tests/node/test_image.py.

What the tests build is in a store of their own. Programs that need the machine's own authorities ($SSL_CERT_FILE) get them while
they build.
"""

import contextlib
import json
import os
import shutil
import socket
import socketserver
import subprocess
import tarfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path("/usr/lib/cni")
REPOSITORY = "registry.example.com/hami-dra"
V0_1_0 = "c584e9ad9cb6cae8dfc346c82e1d2be9e6d328b6"
"""The last commit of the day of 0.1.0."""
_SERVICE = ("10.96.0.1", 443)
_FREEBIND = 15  # IP_FREEBIND: the address comes with the first pod
_BASE = "localhost/hami-dra-python:3.13-trixie"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def why_not():
    """What is missing to build it, as a sentence with the remedy; empty when it can be built here."""
    missing = [name for name in ("buildah", "mmdebstrap") if not shutil.which(name)]
    return f"install {' and '.join(missing)} (Debian's packages)" if missing else ""


class Store:
    """Images that buildah makes, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        config = folder / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/containers"\n'
        )
        self._environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(config)}
        own = os.environ.get("SSL_CERT_FILE")
        self._options = ["--volume", f"{own}:{_CERTIFICATES}:ro"] if own else []

    def build(self, checkout, tag):
        """The archive of an image, built by the checkout's own build.sh."""
        archive = self.folder / f"{tag}.tar"
        script = checkout / "hack/image/build.sh"
        self._run(script, "--buildah", archive, f"{REPOSITORY}:{tag}", *self._options)
        return archive

    def build_0_1_0(self, checkout):
        """The archive of 0.1.0's image: its build.sh knows only Docker. On the base of an image built before."""
        archive, name = self.folder / "0.1.0.tar", f"{REPOSITORY}:0.1.0"
        recipe = checkout / "Dockerfile"
        recipe.write_text(recipe.read_text().replace("UV_NO_CACHE=1", "UV_NO_CACHE=1 UV_SYSTEM_CERTS=1"))
        base = ("--build-arg", f"PYTHON_IMAGE={_BASE}")
        self._run("buildah", "build", "--isolation", "chroot", *base, *self._options, "--tag", name, checkout)
        self._run("buildah", "push", "--quiet", name, f"oci-archive:{archive}:{name}")
        return archive

    def _run(self, *command):
        done = subprocess.run(
            [str(part) for part in command], env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]


def digest(archive):
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("index.json"))["manifests"]
    return manifest["digest"]


def export(commit, folder):
    """The files of a commit in a folder, or None where the history is not that long."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        return None
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", str(folder)], input=done.stdout, check=True)
    return folder


class _Forward(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(self.server.target) as there:
            back = threading.Thread(target=_copy, args=(there, self.request), daemon=True)
            back.start()
            _copy(self.request, there)
            back.join()


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class ServiceAddress(socketserver.ThreadingTCPServer):
    """What kube-proxy does for the Service `kubernetes`, on this machine."""

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        super().__init__(_SERVICE, _Forward)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self):
        self.socket.setsockopt(socket.SOL_IP, _FREEBIND, 1)
        super().server_bind()
