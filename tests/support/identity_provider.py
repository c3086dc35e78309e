"""An OpenID Connect identity provider on loopback: discovery, keys, and tokens for a refresh token, which it accepts once."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.certificates import serving_tls

CLIENT_ID = "hami-dra"


def encoded(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class IdentityProvider:
    """`url`, and `authority`: the PEM that its clients trust. `refreshed`: the refresh tokens that it was shown."""

    def __init__(self, folder, user="jane"):
        self._user = user
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.refresh_token = "refresh-0"
        self.refreshed = []
        tls, self.authority = serving_tls(folder, "localhost")
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answers = {"/.well-known/openid-configuration": provider.discovery, "/keys": provider.keys}
                self.answer(answers.get(self.path, dict)())

            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer(provider.tokens(form))

            def answer(self, body):
                data = json.dumps(body).encode()
                self.send_response(400 if "error" in body else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def discovery(self):
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def keys(self):
        numbers = self._key.public_key().public_numbers()
        modulus, exponent = (
            encoded(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "k", "n": modulus, "e": exponent}]}

    def tokens(self, form):
        shown = form.get("refresh_token", [""])[0]
        self.refreshed.append(shown)
        if shown != self.refresh_token:
            return {"error": "invalid_grant"}
        self.refresh_token = f"refresh-{len(self.refreshed)}"
        return {
            "access_token": "unused",
            "token_type": "Bearer",
            "id_token": self.id_token(),
            "refresh_token": self.refresh_token,
        }

    def id_token(self, seconds=3600):
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "sub": self._user, "iat": now, "exp": now + seconds}
        signed = f"{encoded({'alg': 'RS256', 'kid': 'k', 'typ': 'JWT'})}.{encoded(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{encoded(signature)}"

    def user(self, **config):
        """The user of a kubeconfig, whose stored token has expired."""
        stored = {
            "idp-issuer-url": self.url,
            "client-id": CLIENT_ID,
            "id-token": self.id_token(-60),
            "refresh-token": self.refresh_token,
            "idp-certificate-authority-data": base64.b64encode(self.authority.encode()).decode(),
        }
        kept = {name: value for name, value in {**stored, **config}.items() if value is not None}
        return {"auth-provider": {"name": "oidc", "config": kept}}
