"""How a process proves to the server who it is. Never shown: `repr` hides every value."""

import ssl
from typing import Any
from urllib.parse import urlsplit

import msgspec


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """One way to log in (nkey seed, user and password, token, or a creds file), and TLS files as paths.

    `inbox_prefix`: the subjects of this user's replies. On a shared server each user needs its own prefix and the
    permission to subscribe to it. Otherwise users could read each other's replies.
    """

    nkey_seed: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    inbox_prefix: str = "_INBOX"

    def options(self) -> dict[str, Any]:
        """Return the client library's options. Raises OSError or ssl.SSLError for a TLS file that cannot be read."""
        options: dict[str, Any] = {
            "nkeys_seed_str": self.nkey_seed,
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds_file,
            "tls": self._tls(),
            "inbox_prefix": self.inbox_prefix,
        }
        return {name: value for name, value in options.items() if value}

    def _tls(self) -> ssl.SSLContext | None:
        if not (self.tls_ca or self.tls_cert):
            return None
        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key or None)
        return context

    def __repr__(self) -> str:
        given = [name for name in self.__struct_fields__ if name != "inbox_prefix" and getattr(self, name)]
        return f"Credentials({', '.join(f'{name}=***' for name in given)})"


def shown_url(url: str) -> str:
    """Return the addresses without user names and passwords, for messages."""
    parts = [urlsplit(one if "://" in one else f"nats://{one}") for one in url.split(",")]
    return ",".join(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)
