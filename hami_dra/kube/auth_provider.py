"""Users of a kubeconfig who log in with an `auth-provider`: OIDC, whose tokens are renewed with a
refresh token, and gcp with a program that prints tokens.

Called by `credentials` for such a user alone. A stored OIDC token is used until it expires; then
the official client (the extra `auth-provider`, imported only then) gets a new one and writes it into
the kubeconfig, as kubectl does: many identity providers accept a refresh token once. Raises
`ConfigError`; no secret is ever part of a message or a repr.
"""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hami_dra.api.errors import ConfigError
from hami_dra.kube.exec_plugin import is_token
from hami_dra.kube.kubeconfig import Chosen, content
from hami_dra.kube.waiting import call_within

_NEEDED: Final = ("idp-issuer-url", "client-id", "refresh-token")
_EXPIRED: Final = "e30.eyJleHAiOjB9.e30"
"""An unsigned token that expired in 1970: the official client replaces expired tokens only."""
_EARLY: Final = 10.0
"""Seconds before a token expires in which it is not used any more, as in client-go."""
PATIENCE: Final = 30.0
"""Seconds in which a login must end; the official client waits for ever."""
_INSTEAD: Final = "use an exec plugin, for OIDC: kubectl oidc-login (kubelogin), for GKE: gke-gcloud-auth-plugin"


class ProvidedIdentity:
    """The token of an auth-provider, renewed in a thread when it expires or was refused."""

    def __init__(self, found: Chosen, clock: Callable[[], float] = time.time) -> None:
        """Log in at once if no valid token is stored, so that a login that fails is reported at the start."""
        self._found = found
        self._clock = clock
        provider = found.user["auth-provider"]
        name, config = provider.get("name", ""), provider.get("config", {})
        self._issuer = str(config.get("idp-issuer-url") or config.get("cmd-path", ""))
        self._what = f"kubeconfig: user {found.context.get('user', '')!r}: auth-provider {name!r}"
        self._is_oidc = name == "oidc"
        if not self._is_oidc and not (name == "gcp" and config.get("cmd-path")):
            raise ConfigError(f"{self._what} is not supported; {_INSTEAD}")
        self._token: str = config.get("id-token", "").strip() if self._is_oidc else ""
        self._renewing = asyncio.Lock()
        if not self._is_valid(self._token):
            self._token = self._renewed_in_time()

    def __repr__(self) -> str:
        return f"ProvidedIdentity({self._what})"

    async def header(self, *, renew: bool = False) -> str:
        before = self._token
        async with self._renewing:
            if self._token == before and (renew or not self._is_valid(before)):
                self._token = await asyncio.to_thread(self._renewed_in_time)
        return f"Bearer {self._token}"

    def _is_valid(self, token: str) -> bool:
        """Return whether the token can be sent, and does not say that it has expired."""
        if not is_token(token):
            return False
        try:
            payload = token.split(".")[1]
            expires = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
            return bool(float(expires) - _EARLY > self._clock())
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return True  # no JWT, or one that says nothing: the API server decides

    def _renewed_in_time(self) -> str:
        """Return `_renewed`, unless that takes too long. Raises ConfigError."""
        try:
            return call_within(PATIENCE, self._renewed)
        except TimeoutError:
            raise ConfigError(f"{self._what}: no new token within {PATIENCE:g} s; is {self._issuer} up?") from None

    def _renewed(self) -> str:
        """Return another token than the current one, unless a program prints the same. Raises ConfigError."""
        official = self._official_client()
        try:
            merger = official.KubeConfigMerger(os.pathsep.join(self._files()))
            provider = self._provider_in(merger.config.value)
        except Exception:  # noqa: BLE001 (it was read before by our rules; the official client has others)
            raise ConfigError(f"{self._what}: the official client cannot read {self._found.where}") from None
        config = provider["config"] = provider.get("config") or {}
        added: dict[str, str] = {}
        if self._is_oidc:
            if (stored := str(config.get("id-token") or "")) != self._token and self._is_valid(stored):
                return stored  # kubectl has renewed it meanwhile
            if missing := [name for name in _NEEDED if not config.get(name)]:
                raise ConfigError(f"{self._what} has no valid token, and no {missing[0]} to get one; {_INSTEAD}")
            added = _defaults(config)
            config.update(added, **{"id-token": _EXPIRED})
        elif self._token:
            config.pop("access-token", None)  # it was refused

        def save() -> None:
            if config.get("id-token") != _EXPIRED:
                for name in added:
                    del config[name]
                merger.save_changes()

        token = self._logged_in(official, merger.config, save)
        if not is_token(token) or token == _EXPIRED:
            raise ConfigError(f"{self._what}: {self._issuer} gave no new token; log in again, or {_INSTEAD}")
        return token

    def _files(self) -> list[str]:
        """Return the kubeconfigs that say anything: the official client refuses an empty one."""
        named = [Path(part).expanduser() for part in self._found.where.split(os.pathsep) if part]
        return [str(each) for each in named if each.exists() and _says_anything(each)]

    def _official_client(self) -> Any:
        """Return the module that reads kubeconfigs. Raises ConfigError."""
        try:
            return import_module("kubernetes.config.kube_config")
        except ImportError:
            raise ConfigError(
                f"{self._what} has no valid token, and a new one needs the extra 'auth-provider', which is not installed: "
                f"pip install 'hami-dra[auth-provider]'; or {_INSTEAD}"
            ) from None

    def _logged_in(self, official: Any, config: Any, save: Callable[[], None]) -> str:
        """Return the token with which the official client would log in. Raises ConfigError."""
        configuration = official.Configuration()
        try:
            loader = official.KubeConfigLoader(
                config, active_context=self._found.name, config_base_path=None, config_persister=save
            )
            loader.load_and_set(configuration)
        except Exception:  # noqa: BLE001 (of five libraries; their texts may hold a secret)
            raise ConfigError(
                f"{self._what}: {self._issuer} cannot be reached, is not trusted, or refuses the login; "
                f"check the address and its certificate, log in again, or {_INSTEAD}"
            ) from None
        return str(configuration.api_key.get("BearerToken") or "").removeprefix("Bearer ")

    def _provider_in(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the section of the user in what the official client has read. Raises StopIteration, KeyError."""
        user = next(entry for entry in document["users"] if entry["name"] == self._found.context["user"])
        provider: dict[str, Any] = user["user"].value["auth-provider"]
        return provider


def _says_anything(path: Path) -> bool:
    lines = content(path, "kubeconfig").decode(errors="replace").splitlines()
    return any(line.strip() and not line.lstrip().startswith(("#", "---")) for line in lines)


def _defaults(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that the official client cannot do without, where they are missing.

    Without an authority it would not check the identity provider's certificate: the system's
    authorities are named. A public client has an empty secret.
    """
    import certifi

    defaults: dict[str, str] = {}
    if not config.get("idp-certificate-authority-data") and not config.get("idp-certificate-authority"):
        defaults["idp-certificate-authority"] = ssl.get_default_verify_paths().cafile or certifi.where()
    if "client-secret" not in config:
        defaults["client-secret"] = ""
    return defaults
