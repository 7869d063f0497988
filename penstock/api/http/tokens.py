"""Bearer tokens: what each may do, how they are made, and how the one in a request is found.

A token is `pst_<id>_<secret>`, 256 bits of chance behind ten digits by which its record is found. Only its SHA-256 is
stored (no salt: there is nothing to guess), in TOKENS under `<name>.<id>`; the text is shown once, when it is made.
To rotate, make a second one of the same name, and revoke the first when nobody uses it any more. A revoked token's
record stays: once there has been a token, the gateway asks for one, also when none is valid any more. Who wants it open
on loopback again has the records forgotten.
"""

import hashlib
import hmac
import re
import secrets
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from streams.bucket import Bucket
from streams.entries import Entry
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
]

Verb = Literal["add", "reserve", "settle", "delete", "read", "admin"]
"""`settle` is finish, touch, release and bury; `admin` is kick, and a topic's settings. `add` also submits batches, and
pauses, resumes, cancels and retries them; `admin` also sets a task's limits."""
VERBS: tuple[Verb, ...] = get_args(Verb)
MOST_TOPICS = 1_000
"""Of a token that says nothing else: a topic costs the server a consumer, and every node a record."""
MOST_LIVE = 2
"""Of one name: the one in use, and the one that takes over."""
MOST_PATTERNS = 50
LONGEST_NAMESPACE = 24
_TEXT = re.compile(r"pst_([0-9a-f]{10})_[A-Za-z0-9_-]{43}")
_PATTERN = re.compile(r"[A-Za-z0-9_-]{0,64}\*?")
_NAMESPACE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
Natural = Annotated[int, Meta(ge=0)]


class BadToken(ValueError):
    """What was asked for makes no token; the message names the field, the value and what is allowed."""


class TokenWish(Struct, frozen=True, kw_only=True):
    """What a token is to be. `topics` are names of topics and tasks, or beginnings of them with a `*` behind. With a
    `namespace` the token's holder sees only topics of that tenant, under plain names. 0 means no limit, and no
    expiry."""

    name: str
    topics: tuple[str, ...] = ("*",)
    verbs: tuple[Verb, ...] = ("add", "reserve", "settle", "delete", "read")
    namespace: str = ""
    rate: float = 0.0
    most_waiting: int = 0
    most_topics: int = MOST_TOPICS
    expires_ms: int = 0


class TokenRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as it is stored. `rate`: requests a second, where a batch counts as its jobs; `most_waiting`: jobs that
    the tenant may have delayed and ready; `most_topics`: topics beyond which it makes no new ones. Times are
    milliseconds UTC; 0 is never, and no limit."""

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
        """True if this is the token whose hash is stored; the comparison takes as long either way."""
        return hmac.compare_digest(self.sha256, hash_of(text))


_decoder = msgspec.json.Decoder(TokenRecord)


def decode_token(payload: bytes) -> TokenRecord:
    """Return the record. Raises msgspec.MsgspecError for what is none."""
    return _decoder.decode(payload)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_id(text: str) -> str | None:
    """Return the id in a token's text, None for what is no token."""
    found = _TEXT.fullmatch(text)
    return found[1] if found else None


async def create_token(bucket: Bucket[bytes], wish: TokenWish, *, now_ms: int) -> tuple[str, TokenRecord]:
    """Store a new token; return its text, which nobody can tell again, and its record.

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
    """Make a second token that may do what the newest live one of this name may. Raises BadToken if there is none."""
    live = [one for one in await _of_name(bucket, check_token("name", name)) if one.is_live(now_ms)]
    if not live:
        raise BadToken(f"name {name!r}: has no live token to rotate; create one")
    newest = max(live, key=lambda one: one.created_ms)
    same = {field: getattr(newest, field) for field in TokenWish.__struct_fields__}
    return await create_token(bucket, TokenWish(**{**same, "expires_ms": expires_ms}), now_ms=now_ms)


async def list_tokens(bucket: Bucket[bytes]) -> list[TokenRecord]:
    """Return every record, revoked and expired ones too, by name and age; no text can be told from it.

    Raises BadToken for a record that somebody else wrote and that is none."""
    found = [_read(entry) for entry in await bucket.entries()]
    return sorted(found, key=lambda one: (one.name, one.created_ms, one.id))


async def revoke_token(bucket: Bucket[bytes], name: str, own_id: str = "", *, now_ms: int) -> list[TokenRecord]:
    """Make the name's live tokens, or the one with this id, invalid within a second everywhere; return them.

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
    """Remove the records of a name's tokens that are not valid any more, and return them; without any record the
    gateway asks for no token, on loopback. Raises BadToken if there is none."""
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
    """Raise BadToken naming the first field that is wrong."""
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
