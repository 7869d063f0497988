"""Bearer tokens: what each may do, how they are made, and how the gateway finds the one in a request.

A token is `pst_<id>_<secret>`: ten digits that find its record, and 256 random bits. TOKENS stores only its SHA-256
(no salt: the secret cannot be guessed), under `<name>.<id>`. The text is shown once, when it is made. To rotate, make a
second token of the same name, and revoke the first when no client uses it any more. A revoked token's record stays. As
long as there is a record, the gateway requires a token, also when none is valid any more. To open the gateway on
loopback again, call `forget_tokens`.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.subjects import TOKEN, check_token

__all__ = [
    "VERBS",
    "BadToken",
    "TokenRecord",
    "TokenWish",
    "Verb",
    "create_token",
    "decode_token",
    "forget_tokens",
    "hash_of",
    "list_tokens",
    "revoke_token",
    "rotate_token",
    "token_id",
    "tokens_behind",
]

Verb = Literal["add", "reserve", "settle", "delete", "read", "look", "admin"]
"""`settle` is finish, touch, release and bury. `admin` is kick, changes schedules, the settings of
topics and the limits of tasks. `add` also submits, pauses, resumes, cancels and retries batches. `look` is the hook of
sources, and nothing else."""
VERBS: tuple[Verb, ...] = get_args(Verb)
USUAL_VERBS: tuple[Verb, ...] = ("add", "reserve", "settle", "delete", "read")
MOST_TOPICS = 1_000
"""The default of a token: a topic costs the server a consumer, and every node a record."""
MOST_LIVE = 2
"""Live tokens of one name: the one in use, and the one that replaces it."""
MOST_PATTERNS = 50
LONGEST_NAMESPACE = 24
_TEXT = re.compile(r"pst_([0-9a-f]{10})_[A-Za-z0-9_-]{43}")
_PATTERN = re.compile(r"[A-Za-z0-9_-]{0,64}(/[A-Za-z0-9_-]{0,64})?\*?")
_NAMESPACE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
Natural = Annotated[int, Meta(ge=0)]


class BadToken(ValueError):
    """A request about tokens is not valid. The message names the field, the value and what is allowed."""


class TokenWish(Struct, frozen=True, kw_only=True):
    """The settings of a new token. `topics` are names of topics, tasks and sources, or prefixes of them that end with
    `*`. With
    a `namespace` the token's holder sees only topics of that tenant, under plain names. 0 means no limit, and no
    expiry."""

    name: str
    topics: tuple[str, ...] = ("*",)
    verbs: tuple[Verb, ...] = USUAL_VERBS
    namespace: str = ""
    rate: float = 0.0
    most_waiting: int = 0
    most_topics: int = MOST_TOPICS
    expires_ms: int = 0


class TokenRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as it is stored. `rate`: requests a second, where a batch counts as its jobs. `most_waiting`: jobs that
    the tenant may have delayed and ready. `most_topics`: topics beyond which it makes no new ones. Times are
    milliseconds UTC. 0 is never, and no limit."""

    name: str
    id: str
    sha256: str
    topics: tuple[str, ...]
    verbs: tuple[str, ...]
    namespace: str = ""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    most_waiting: Natural = 0
    most_topics: Natural = MOST_TOPICS
    created_ms: Natural = 0
    expires_ms: Natural = 0
    revoked_ms: Natural = 0

    @property
    def key(self) -> str:
        return f"{self.name}.{self.id}"

    def is_live(self, now_ms: int) -> bool:
        return not self.revoked_ms and (not self.expires_ms or now_ms < self.expires_ms)

    def fits(self, text: str) -> bool:
        """True if this is the token whose hash is stored. The comparison takes constant time."""
        return hmac.compare_digest(self.sha256, hash_of(text))


_decoder = msgspec.json.Decoder(TokenRecord)


def decode_token(payload: bytes) -> TokenRecord:
    """Return the record. Raises msgspec.MsgspecError if the payload is not a token record."""
    return _decoder.decode(payload)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_id(text: str) -> str | None:
    """Return the id in a token's text, or None if the text is not a token."""
    found = _TEXT.fullmatch(text)
    return found[1] if found else None


async def create_token(bucket: Bucket[bytes], wish: TokenWish, *, now_ms: int) -> tuple[str, TokenRecord]:
    """Store a new token. Return its text, which cannot be shown again, and its record.

    Raises BadToken, also when the name has two live tokens already."""
    check_wish(wish, now_ms=now_ms)
    live = [one for one in await _of_name(bucket, wish.name) if one.is_live(now_ms)]
    if len(live) >= MOST_LIVE:
        raise BadToken(f"name {wish.name!r}: has {len(live)} live tokens; revoke the one that is not used any more")
    own_id = secrets.token_hex(5)
    text = f"pst_{own_id}_{secrets.token_urlsafe(32)}"
    record = TokenRecord(
        **{**msgspec.structs.asdict(wish), "id": own_id, "sha256": hash_of(text), "created_ms": now_ms}
    )
    await bucket.create(record.key, msgspec.json.encode(record))
    return text, record


async def rotate_token(
    bucket: Bucket[bytes], name: str, *, now_ms: int, expires_ms: int = 0
) -> tuple[str, TokenRecord]:
    """Make a second token with the rights of the newest live one of this name. Raises BadToken if there is none."""
    live = [one for one in await _of_name(bucket, check_token("name", name)) if one.is_live(now_ms)]
    if not live:
        raise BadToken(f"name {name!r}: has no live token to rotate; create one")
    newest = max(live, key=lambda one: one.created_ms)
    same = {field: getattr(newest, field) for field in TokenWish.__struct_fields__}
    return await create_token(bucket, TokenWish(**{**same, "expires_ms": expires_ms}), now_ms=now_ms)


async def list_tokens(bucket: Bucket[bytes]) -> list[TokenRecord]:
    """Return every record, also revoked and expired ones, by name and age. The text of a token is not in it.

    Raises BadToken for a record that is not a token record."""
    found = [_read(entry) for entry in await bucket.entries()]
    return sorted(found, key=lambda one: (one.name, one.created_ms, one.id))


def tokens_behind(tokens: Sequence[TokenRecord], after: str) -> list[TokenRecord]:
    """Return the tokens of a list that follow the one with this key. If that one is gone, those of later names."""
    keys = [one.key for one in tokens]
    if after in keys:
        return list(tokens[keys.index(after) + 1 :])
    name = after.partition(".")[0]
    return [one for one in tokens if one.name > name]


async def revoke_token(bucket: Bucket[bytes], name: str, own_id: str = "", *, now_ms: int) -> list[TokenRecord]:
    """Revoke the name's live tokens, or the one with this id, within a second everywhere. Return them.

    Raises BadToken if there is none."""
    check_token("name", name)
    revoked = []
    for entry in await bucket.entries(f"{name}.*"):
        record = _read(entry)
        if not record.revoked_ms and own_id in ("", record.id):
            record = msgspec.structs.replace(record, revoked_ms=now_ms)
            await bucket.put(record.key, msgspec.json.encode(record))
            revoked.append(record)
    if not revoked:
        raise BadToken(f"name {name!r}: has no token {own_id or 'that is not revoked'}")
    return revoked


async def forget_tokens(bucket: Bucket[bytes], name: str, *, now_ms: int) -> list[TokenRecord]:
    """Remove the records of a name's tokens that are no longer valid, and return them. Without any record the gateway
    requires no token on loopback. Raises BadToken if there is none."""
    check_token("name", name)
    over = [
        (entry, record) for entry in await bucket.entries(f"{name}.*") if not (record := _read(entry)).is_live(now_ms)
    ]
    if not over:
        raise BadToken(f"name {name!r}: has no token that is revoked or expired; revoke it first")
    for entry, _ in over:
        await bucket.delete(entry.key, revision=entry.revision)
    return [record for _, record in over]


def check_wish(wish: TokenWish, *, now_ms: int) -> None:
    """Raise BadToken that names the first wrong field."""
    if not TOKEN.fullmatch(wish.name):
        raise BadToken(f"name {wish.name!a}: use 1 to 64 of A-Z a-z 0-9 _ -")
    if not 1 <= len(wish.topics) <= MOST_PATTERNS:
        raise BadToken(f"topics: {len(wish.topics)} of them; name 1 to {MOST_PATTERNS}, `*` for all")
    for pattern in wish.topics:
        if not pattern or not _PATTERN.fullmatch(pattern):
            raise BadToken(f"topics: {pattern!a} is neither a topic nor a beginning with `*` behind, as in shop1-*")
    if not wish.verbs or not set(wish.verbs) <= set(VERBS):
        raise BadToken(f"verbs: {', '.join(wish.verbs) or 'none'}; choose among {', '.join(VERBS)}")
    if wish.namespace and (len(wish.namespace) > LONGEST_NAMESPACE or not _NAMESPACE.fullmatch(wish.namespace)):
        raise BadToken(
            f"namespace {wish.namespace!a}: use up to {LONGEST_NAMESPACE} of a-z 0-9, with single `-` in between"
        )
    if not 0 <= wish.rate <= 1e9:
        raise BadToken(f"rate {wish.rate!r}: use requests a second, 0 for no limit")
    if not 0 <= wish.most_waiting <= 10**12:
        raise BadToken(f"most_waiting {wish.most_waiting!r}: use a number of jobs, 0 for no limit")
    if not 0 <= wish.most_topics <= 10**6:
        raise BadToken(f"most_topics {wish.most_topics!r}: use a number of topics, 0 for no limit")
    if wish.expires_ms and wish.expires_ms <= now_ms:
        raise BadToken("expires: is over already")


async def _of_name(bucket: Bucket[bytes], name: str) -> list[TokenRecord]:
    return [_read(entry) for entry in await bucket.entries(f"{name}.*")]


def _read(entry: Entry[bytes]) -> TokenRecord:
    try:
        return decode_token(entry.value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadToken(f"record {entry.key}: is no token's ({error}); delete it: nats kv del … {entry.key}") from error
