"""Request signatures as recipes: sorted pairs, a pattern around them, an algorithm, a case.

Covers TOP, Pinduoduo, JD, Lazada, Shopee, Douyin and TikTok Shop without code: their documents and SDKs agree that the
text to sign is some order of secret, path, sorted parameters and body."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from platforms.errors import BadDeclaration
from platforms.templates import Template

Algorithm = Literal["md5", "sha1", "sha256", "hmac-md5", "hmac-sha1", "hmac-sha256", "hmac-sha512"]
_WORDS = frozenset({"secret", "sorted", "path", "body"})
_PAIR_WORDS = frozenset({"k", "v"})

_DIGESTS: Mapping[Algorithm, Callable[[bytes, bytes], bytes]] = {
    "md5": lambda secret, text: hashlib.md5(text, usedforsecurity=False).digest(),
    "sha1": lambda secret, text: hashlib.sha1(text, usedforsecurity=False).digest(),
    "sha256": lambda secret, text: hashlib.sha256(text).digest(),
    "hmac-md5": lambda secret, text: hmac.digest(secret, text, "md5"),
    "hmac-sha1": lambda secret, text: hmac.digest(secret, text, "sha1"),
    "hmac-sha256": lambda secret, text: hmac.digest(secret, text, "sha256"),
    "hmac-sha512": lambda secret, text: hmac.digest(secret, text, "sha512"),
}


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """How a platform signs.

    pattern: `{secret}`, `{sorted}`, `{path}`, `{body}` and `{param.<name>}` in the platform's order. pair, join: how
    sorted pairs are written. leave_out: parameters that are not signed. `skip_empty`: nor are empty ones. encoding: of
    the digest, and `case` is of hex digits."""

    pattern: str = "{secret}{sorted}{secret}"
    algorithm: Algorithm = "md5"
    case: Literal["upper", "lower"] = "upper"
    encoding: Literal["hex", "base64"] = "hex"
    pair: str = "{k}{v}"
    join: str = ""
    skip_empty: bool = True
    leave_out: tuple[str, ...] = ("sign",)


class Signer:
    """A recipe, checked and ready. `param_names` are the parameters that the pattern names itself."""

    def __init__(self, where: str, recipe: Recipe, params: Iterable[str]) -> None:
        self._recipe = recipe
        self.param_names = frozenset(f"param.{name}" for name in params)
        self._pattern = Template(f"{where}.pattern", recipe.pattern, _WORDS | self.param_names)
        self._pair = Template(f"{where}.pair", recipe.pair, _PAIR_WORDS)
        if "v" not in self._pair.names:
            raise BadDeclaration(f"{where}.pair", f"{recipe.pair!r} signs no value; write {{v}} into it")
        if self._pattern.account_names or self._pair.account_names:
            raise BadDeclaration(f"{where}.pattern", "takes account values by way of parameters: {param.<name>}")
        if "secret" not in self._pattern.names and not recipe.algorithm.startswith("hmac"):
            raise BadDeclaration(f"{where}.pattern", f"signs nothing secret; {recipe.algorithm} needs {{secret}} in it")

    def sign(self, secret: str, path: str, params: Iterable[tuple[str, str]], body: bytes = b"") -> str:
        """Return the signature. `params` are unencoded, in any order."""
        given = dict(params)
        values: dict[str, str | None] = {name: given.get(name.removeprefix("param."), "") for name in self.param_names}
        values |= {"secret": secret, "path": path, "body": body.decode("utf-8", "surrogateescape")}
        values["sorted"] = self._sorted(given)
        text = self._pattern.render(values)
        assert text is not None  # no placeholder of a pattern is ever without a value
        digest = _DIGESTS[self._recipe.algorithm](secret.encode(), text.encode("utf-8", "surrogateescape"))
        if self._recipe.encoding == "base64":
            return base64.b64encode(digest).decode()
        return digest.hex().upper() if self._recipe.case == "upper" else digest.hex()

    def _sorted(self, params: Mapping[str, str]) -> str:
        recipe = self._recipe
        names = [
            name for name in sorted(params) if name not in recipe.leave_out and (params[name] or not recipe.skip_empty)
        ]
        return recipe.join.join(self._pair.render({"k": name, "v": params[name]}) or "" for name in names)
