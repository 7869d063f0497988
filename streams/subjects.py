"""Names on the broker, built and parsed by one grammar. Pure: no I/O, no clock.

A name is made of tokens, and a token is 1 to 64 of `A-Z a-z 0-9 _ -`. The server itself accepts far more, and each
extra hurts: `*` and `>` are stored literally and then match as wildcards, blanks and line ends break the protocol, and
a subject above 4,096 bytes makes the server close the link for good. So no text of a user becomes part of a subject or
key before it passes `check_token`, or `token_of` turns it into a token.

Every subject starts with the namespace. Streams and buckets start with its upper case, so that several installations
can share a server. Subjects, with the namespace left out:

    slices.<platform>.<lane>.<source>.<slice_id>      SLICES   the subject is the slice's identity in the queue
    orders.<platform>.<source>                        ORDERS   a page of orders
    orders.<platform>.<source>.<order_token>          ORDERS   one sent alone, again
    dead.<engine>.<name>.<id>                         DEAD
    events.<engine>.…                                 EVENTS
    jobs.<state>.<topic>.<key>                        JOBS     a job, whose key is its id, or the id's hash
    jobs.refused.<topic>.<key>.<nonce>                JOBS     an add that was refused, or taken back
    jobs.read.<reader>                                JOBS     what a reader stores first (streams/jobs/sure_reads.py)
    jobs-<part>of<number>.…                           JOBS_…   the same, where jobs are in several streams (ADR 83)
    submit.job.<topic>                                SUBMIT   a job from any publisher, also on `submit.job` alone
    submit.batch.<task>                               SUBMIT   a batch from any publisher, also on `submit.batch`
    due.<partition>                                   core     notices of delayed jobs for the timers
    due.crowds                                        core     how many jobs a program has added for the same time
    gone                                              core     requests to handlers' nodes about a deleted job
    rates                                             core     requests of nodes for shares of the cluster's rates
    rates-begun                                       core     requests to all nodes for what they began under rates
    api.batch-looks.<task>                            core     requests how a task's code reads rows
    api.flow-loads.<flow>.<group>[.<zone>]            core     requests to load rows of one shard
    api.<service>.<endpoint>                          core     requests to a node, and its replies
    ask.<program>.…                                   core     requests of a node to programs that run items
"""

import hashlib
import itertools
import re
from collections.abc import Callable
from zlib import crc32

import msgspec

from streams.errors import MalformedSubject

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_SUBJECT = 512
"""Characters in a whole subject: far below the server's 4,096-byte control line, with room for `$JS.ACK` replies."""
MAX_KEY_TOKENS = 8

_KEY = re.compile(rf"{TOKEN.pattern}(?:\.{TOKEN.pattern}){{0,{MAX_KEY_TOKENS - 1}}}")
_NAMESPACE = re.compile(r"[a-z0-9_-]{1,32}")
_HASHED = "h_"
_PAIRS = tuple(map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz234567", repeat=2)))
_SHOWN = 80


def check_token(kind: str, value: str) -> str:
    """Return `value` if it is a token. Raises MalformedSubject with `kind` and what is allowed."""
    if isinstance(value, str) and TOKEN.fullmatch(value):
        return value
    raise MalformedSubject(f"{kind} {_shown(value)}: {_token_fault(value)}")


def token_of(text: str) -> str:
    """Return a token for any text: itself where it fits, else `h_` and 26 characters of its hash (128 bit BLAKE2b).

    The same text gives the same token for good. Text that starts with `h_` is always hashed, so that no text can
    pose as the hash of another.
    """
    if TOKEN.fullmatch(text) and not text.startswith(_HASHED):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return _HASHED + _base32(digest)


def _base32(digest: bytes) -> str:
    """Return what `base64.b32encode` does of 16 bytes, in lower case and faster: each job with such an id needs it."""
    number = int.from_bytes(digest, "big") << 2
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def is_hashed(token: str) -> bool:
    """Return whether `token_of` made this token of a text that it does not show."""
    return token.startswith(_HASHED)


def check_key(key: str) -> str:
    """Return `key` if it is a bucket key: 1 to 8 tokens joined by dots. Raises MalformedSubject."""
    if isinstance(key, str) and is_key(key):
        return key
    return _check_dotted("key", key, check_token)


def is_key(key: str) -> bool:
    """Return whether `check_key` takes it. Other tools write keys that it does not."""
    return _KEY.fullmatch(key) is not None


def check_key_pattern(pattern: str) -> str:
    """Return `pattern` if it is a key whose tokens may be `*` and the last one `>`. Raises MalformedSubject."""
    tokens = pattern.split(".") if isinstance(pattern, str) else []
    if tokens and tokens[-1] == ">":
        tokens = tokens[:-1]
        if not tokens:
            return pattern
    _check_dotted("key pattern", ".".join(tokens) if tokens else pattern, _check_token_or_star)
    return pattern


def kv_stream(bucket: str) -> str:
    """Return the name of the stream behind a bucket, as the `nats kv` command expects it."""
    return f"KV_{check_token('bucket', bucket)}"


def api_prefix(domain: str = "") -> str:
    """Return what the subjects of the JetStream API begin with. `domain`: of another JetStream domain, which a leaf
    node joins to this one. Messages for its streams go to a subject behind the same prefix."""
    return f"$JS.{check_token('domain', domain)}.API." if domain else "$JS.API."


class Namespace(msgspec.Struct, frozen=True):
    """The first token of every subject, and the prefix of every stream and bucket: 1 to 32 of `a-z 0-9 _ -`.

    Lower case only: streams carry it in upper case, and two namespaces must never meet in one stream.
    Not `kv` or `obj`: those are the server's own prefixes.
    """

    name: str = "penstock"
    job_streams: int = 1
    """In how many streams the jobs are, each topic in one. The server knows the number (topology.job_streams_of)."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAMESPACE.fullmatch(self.name):
            raise MalformedSubject(f"namespace {_shown(self.name)}: use 1 to 32 of a-z 0-9 _ - (lower case)")
        if f"{self.name}_".startswith(("kv_", "obj_")):  # its streams would pose as buckets or object stores
            raise MalformedSubject(f"namespace {_shown(self.name)}: must not start with kv or obj")

    def subject(self, *tokens: str) -> str:
        """Return `<namespace>.<token>.…`. Raises MalformedSubject for an invalid token, or more than 512 characters in
        all."""
        for token in tokens:
            check_token("subject token", token)
        return self._joined(tokens)

    def pattern(self, *tokens: str) -> str:
        """Return a subject to subscribe or filter by: a token may be `*`, and the last one `>`."""
        last = len(tokens) - 1
        for at, token in enumerate(tokens):
            if token != ">" or at != last:
                _check_token_or_star("pattern token", token)
        return self._joined(tokens)

    def stream(self, short: str) -> str:
        """Return the stream's name: `SLICES` is `PENSTOCK_SLICES`."""
        return f"{self.name.upper()}_{check_token('stream', short)}"

    def bucket(self, short: str) -> str:
        """Return the bucket's name: `SETTINGS` is `PENSTOCK_SETTINGS` (its stream is `KV_PENSTOCK_SETTINGS`)."""
        return f"{self.name.upper()}_{check_token('bucket', short)}"

    def slice_offer(self, platform: str, lane: str, source: str, slice_id: str) -> str:
        """Return the one subject on which this slice may wait in SLICES."""
        return self.subject("slices", platform, lane, source, slice_id)

    def orders(self, platform: str, source: str) -> str:
        """Return the subject of a source's pages of orders."""
        return self.subject("orders", platform, source)

    def order(self, platform: str, source: str, order_key: str) -> str:
        """Return the subject of an order sent alone. Its key may be any text, and becomes a token."""
        return self.subject("orders", platform, source, token_of(order_key))

    def event(self, engine: str, *names: str) -> str:
        """Return the subject of an engine's event."""
        return self.subject("events", engine, *names)

    def dead(self, engine: str, name: str, dead_id: str) -> str:
        """Return the subject of a dead letter."""
        return self.subject("dead", engine, name, dead_id)

    def jobs_streams(self) -> tuple[str, ...]:
        """Return the names of the streams of jobs."""
        return tuple(map(self._jobs_stream, range(self.job_streams)))

    def jobs_stream(self, topic: str) -> str:
        """Return the name of the stream that has the jobs of a topic."""
        return self._jobs_stream(self._job_part(topic))

    def jobs_stream_of(self, subject: str) -> str:
        """Return the name of the stream of a subject of jobs, or of a pattern of them."""
        if self.job_streams == 1:
            return self._jobs_stream(0)
        return self._jobs_stream(int(subject.split(".", 2)[1].removeprefix("jobs-").partition("of")[0]))

    def jobs_first(self, topic: str) -> str:
        """Return the first token of the subjects of a topic's jobs."""
        return self._jobs_first(self._job_part(topic))

    def jobs_patterns(self, *tokens: str) -> dict[str, str]:
        """Return the patterns of jobs of all topics, by the name of the stream. `tokens`: those after the first."""
        return {self._jobs_stream(n): self.pattern(self._jobs_first(n), *tokens) for n in range(self.job_streams)}

    def _job_part(self, topic: str) -> int:
        return 0 if self.job_streams == 1 else crc32(topic.encode("utf-8", "replace")) % self.job_streams

    def _jobs_stream(self, part: int) -> str:
        return self.stream(f"JOBS_{part}" if part else "JOBS")

    def _jobs_first(self, part: int) -> str:
        """Return a token that a program which reckons with another number of streams never uses."""
        return "jobs" if self.job_streams == 1 else f"jobs-{part}of{self.job_streams}"

    def job(self, state: str, topic: str, key: str) -> str:
        """Return the subject of a job in one of its states."""
        return self.subject(self.jobs_first(topic), state, topic, key)

    def job_in_any_state(self, topic: str, key: str) -> str:
        """Return the pattern of a job in any state. As the subject of an expected sequence it makes one condition on
        the job's identity. Every change of a job names this pattern, since a cluster compares writes under way by
        it."""
        return self.pattern(self.jobs_first(topic), "*", topic, key)

    def jobs_in(self, state: str, topic: str) -> str:
        """Return the pattern of a topic's jobs in a state, or in any (`*`)."""
        return self.pattern(self.jobs_first(topic), state, topic, "*")

    def submit_job(self, topic: str) -> str:
        """Return the subject on which jobs of this topic are submitted, by any client that the server allows to."""
        return self.subject("submit", "job", topic)

    def due(self, partition: int) -> str:
        """Return the subject of notices that jobs of a partition were delayed."""
        return self.subject("due", str(partition))

    def due_crowds(self) -> str:
        """Return the subject on which programs tell one another how many delayed jobs they added for which time."""
        return self.subject("due", "crowds")

    def due_holder(self, partition: int) -> str:
        """Return the subject of requests to the timer that fires the jobs of a partition."""
        return self.subject("due", str(partition), "holder")

    def due_known(self, partition: int) -> str:
        """Return the subject of requests for the due times of a partition, to a timer that knows them."""
        return self.subject("due", str(partition), "known")

    def gone(self) -> str:
        """Return the subject of requests to nodes with handlers that a job was deleted. They reply."""
        return self.subject("gone")

    def begun_jobs(self) -> str:
        """Return the subject on which nodes with handlers report to each other the jobs that they had begun before a
        restart."""
        return self.subject("begun-jobs")

    def rates(self) -> str:
        """Return the subject on which nodes ask the governor for their shares of the cluster's rates."""
        return self.subject("rates")

    def rates_begun(self) -> str:
        """Return the subject of requests to all nodes for what they began under the cluster's rates. Each replies."""
        return self.subject("rates-begun")

    def flow_loads(self, flow: str, group: str, zone: str = "") -> str:
        """Return the subject of requests to load rows of one of a flow's shards, to the nodes of a group. `zone`: only
        to those in this zone."""
        return self.subject("api", "flow-loads", flow, group, *((zone,) if zone else ()))

    def batch_looks(self, task: str) -> str:
        """Return the subject of requests how a task's code reads rows, to the processes that serve it."""
        return self.subject("api", "batch-looks", task)

    def api(self, service: str, endpoint: str) -> str:
        """Return the subject of an endpoint of a node's service."""
        return self.subject("api", service, endpoint)

    def parse(self, subject: str) -> tuple[str, ...]:
        """Return the tokens after the namespace. Raises MalformedSubject for another namespace or another grammar."""
        first, *tokens = subject.split(".")
        if first != self.name or not tokens:
            raise MalformedSubject(f"subject {_shown(subject)}: expected it to start with {self.name}.")
        for token in tokens:
            if not TOKEN.fullmatch(token):
                check_token(f"subject {_shown(subject)}: token", token)
        return tuple(tokens)

    def _joined(self, tokens: tuple[str, ...]) -> str:
        if not tokens:
            raise MalformedSubject(f"subject: no tokens after {self.name}")
        subject = ".".join((self.name, *tokens))
        if len(subject) > MAX_SUBJECT:
            raise MalformedSubject(f"subject {_shown(subject)}: {len(subject)} characters, at most {MAX_SUBJECT}")
        return subject


def _check_token_or_star(kind: str, value: str) -> str:
    return value if value == "*" else check_token(kind, value)


def _check_dotted(kind: str, value: str, check: Callable[[str, str], str]) -> str:
    if not isinstance(value, str) or not value:
        raise MalformedSubject(f"{kind} {_shown(value)}: empty; use 1 to {MAX_KEY_TOKENS} tokens joined by dots")
    tokens = value.split(".", MAX_KEY_TOKENS)
    if len(tokens) > MAX_KEY_TOKENS:
        raise MalformedSubject(f"{kind} {_shown(value)}: more than {MAX_KEY_TOKENS} tokens")
    for token in tokens:
        check(f"{kind} {_shown(value)}: token", token)
    return value


def _token_fault(value: object) -> str:
    if not isinstance(value, str):
        return f"text is needed, not {type(value).__name__}"
    if not value:
        return "empty; use 1 to 64 of A-Z a-z 0-9 _ -"
    if len(value) > 64:
        return f"{len(value)} characters; use 1 to 64 of A-Z a-z 0-9 _ -"
    odd = next(sign for sign in value if not TOKEN.fullmatch(sign))
    return f"contains {odd!a}; use 1 to 64 of A-Z a-z 0-9 _ -"


def _shown(value: object) -> str:
    """Return the value for a message: escaped, so that it cannot forge a log line, and bounded."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
