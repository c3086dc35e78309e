"""Users of a kubeconfig who log in with a program (`exec`), as on EKS, GKE and AKS.

Called by `credentials`. The protocol is client.authentication.k8s.io, v1 and v1beta1, as client-go
speaks it: the program gets its input in KUBERNETES_EXEC_INFO, prints an ExecCredential to stdout,
and talks to the user on stderr. Raises `ConfigError`; no secret is ever part of a message or a
repr. A client certificate is read once, since it belongs to a connection; a token is renewed when
it expires and when the API server refuses it.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hami_dra.api.errors import ConfigError

_VERSIONS: Final = frozenset(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
_CLUSTER_FIELDS: Final = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
    "disable-compression",
)  # fmt: skip
_CLUSTER_CONFIG: Final = "client.authentication.k8s.io/exec"
"""Name of the kubeconfig extension whose content the program receives as `spec.cluster.config`."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """What a program printed: a token, or a client certificate with its key (PEM), or both."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """The `exec` section of a kubeconfig user."""

    user: str
    api_version: str
    command: str
    arguments: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    interactive_mode: str
    install_hint: str
    cluster: dict[str, Any] | None = field(repr=False)
    """Sent to the program; None unless it asks for it (`provideClusterInfo`)."""

    def run(self) -> ExecCredential:
        """Run the program and return its credential. It may ask the user, so it has no timeout."""
        interactive = self.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if self.interactive_mode == "Always" and not interactive:
            raise ConfigError(f"{self._title} needs a terminal to log in, and stdin is none")
        spec: dict[str, Any] = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        info = {"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec}
        try:
            done = subprocess.run(  # noqa: S603 (the kubeconfig's owner chose the program)
                [self.command, *self.arguments],
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**os.environ, **self.environment, "KUBERNETES_EXEC_INFO": json.dumps(info, default=str)},
                check=False,
            )
        except ValueError:
            raise ConfigError(f"{self._title} cannot be run: a character that no program can be given") from None
        except OSError as error:
            hint = f"\n{self.install_hint}" if self.install_hint else ""
            raise ConfigError(f"{self._title} cannot be run: {error.strerror}{hint}") from None
        if done.returncode:
            raise ConfigError(f"{self._title} failed with exit status {done.returncode}; its own message is above")
        try:
            return _credential(json.loads(done.stdout), self.api_version)
        except (ValueError, TypeError, AttributeError, RecursionError):
            # The text may hold a secret.
            raise ConfigError(f"{self._title} printed no ExecCredential of {self.api_version}") from None

    @property
    def _title(self) -> str:
        return f"kubeconfig: user {self.user!r}: the program {self.command!r}"


def plugin_of(
    user_name: str, user: Mapping[str, Any], cluster: Mapping[str, Any], authority: bytes | None
) -> ExecPlugin:
    """Return the program that a user's `exec` names. Raises ConfigError.

    `user`, `cluster`: entries of the kubeconfig (`kubeconfig.chosen`).
    """
    section = user["exec"]
    version, command = section.get("apiVersion", ""), section.get("command", "")
    if version not in _VERSIONS:
        raise ConfigError(
            f"kubeconfig: user {user_name!r}: exec.apiVersion {version!r} is not supported; "
            f"one of {', '.join(sorted(_VERSIONS))}"
        )
    if not command:
        raise ConfigError(f"kubeconfig: user {user_name!r}: exec.command is empty")
    if os.sep in command:
        # Relative to the kubeconfig, like its other paths.
        command = str(user[".folder"] / Path(command))
    return ExecPlugin(
        user=user_name,
        api_version=version,
        command=command,
        arguments=tuple(section.get("args", ())),
        environment={entry["name"]: entry["value"] for entry in section.get("env", ())},
        interactive_mode=section.get("interactiveMode") or "IfAvailable",
        install_hint=section.get("installHint", "").strip(),
        cluster=_cluster_info(cluster, authority) if section.get("provideClusterInfo") else None,
    )


def _cluster_info(cluster: Mapping[str, Any], authority: bytes | None) -> dict[str, Any]:
    info = {name: cluster[name] for name in _CLUSTER_FIELDS if name in cluster}
    if authority is not None:
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == _CLUSTER_CONFIG:
            info["config"] = extension.get("extension")
    return info


def _credential(document: dict[str, Any], api_version: str) -> ExecCredential:
    """Read an ExecCredential. Raises ValueError, TypeError or AttributeError if it is none."""
    status = document.get("status") or {}
    token = status.get("token") or ""
    certificate, key = status.get("clientCertificateData") or "", status.get("clientKeyData") or ""
    valid = (not token or is_token(token)) and (token or certificate) and bool(certificate) == bool(key)
    if document.get("kind") != "ExecCredential" or document.get("apiVersion") != api_version or not valid:
        raise ValueError
    expires = datetime.fromisoformat(status["expirationTimestamp"]) if status.get("expirationTimestamp") else None
    if expires is not None and expires.tzinfo is None:
        raise ValueError
    return ExecCredential(token, certificate.encode(), key.encode(), expires)


def is_token(value: Any) -> bool:
    """Return whether it is text that a header can hold."""
    return isinstance(value, str) and bool(value) and all("!" <= char <= "~" for char in value)


class ExecIdentity:
    """The token of a program, renewed in a thread when it expires or was refused."""

    def __init__(self, plugin: ExecPlugin, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Run the program once, so that a login that fails is reported at the start."""
        self._plugin = plugin
        self._clock = clock
        self._renewing = asyncio.Lock()
        self.credential = plugin.run()

    async def header(self, *, renew: bool = False) -> str:
        """Return the value of the Authorization header; empty with a client certificate alone."""
        seen = self.credential
        if renew or self._is_expired():
            async with self._renewing:
                # Of several requests that were refused together, one runs the program.
                if self.credential is seen:
                    self.credential = await asyncio.to_thread(self._plugin.run)
        return f"Bearer {self.credential.token}" if self.credential.token else ""

    def _is_expired(self) -> bool:
        return self.credential.expires is not None and self.credential.expires <= self._clock()
