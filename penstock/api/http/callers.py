"""Who makes a request, and which topics are theirs. Pure.

A tenant's topic `orders` is `<namespace>--orders` on the broker, in receipts too. A namespace neither contains `--` nor
ends with `-`, so it ends at the first `--`. `*` alone in a token without a namespace does not match the topics of
tenants: the pattern must contain the `--`. Nor does `*` match a topic that is the operator's (`OPERATORS`).
"""

from collections.abc import Sequence

from penstock.api.http.problems import RefusedRequest, refused
from penstock.api.http.tokens import VERBS, TokenRecord, Verb

__all__ = ["ANYBODY", "Caller", "caller_of"]

PART = "--"
OPERATORS = frozenset(("default", "schedule-targets"))
"""`default` holds the settings of all topics. It is not a topic itself. The jobs of `schedule-targets` are those of all
tenants' schedules of batches. Only a token that names one of them in full reaches it."""


class Caller:
    """What the holder of a token may do. Names and receipts are `inner` on the broker, `outer` for the client."""

    __slots__ = (
        "_exact",
        "_is_whole",
        "_prefix",
        "_starts",
        "key",
        "most_topics",
        "most_waiting",
        "name",
        "rate",
        "tenant",
        "verbs",
    )

    def __init__(
        self,
        name: str,
        *,
        verbs: Sequence[str],
        topics: Sequence[str],
        namespace: str = "",
        rate: float = 0.0,
        most_waiting: int = 0,
        most_topics: int = 0,
        is_whole: bool = False,
    ) -> None:
        self.name = name
        self.key = f"{namespace}/{name}"
        self.verbs = frozenset(verbs)
        self.rate = rate
        self.most_waiting = most_waiting
        self.most_topics = most_topics
        self.tenant = namespace
        self._prefix = f"{namespace}{PART}" if namespace else ""
        self._is_whole = is_whole
        self._exact = frozenset(one for one in topics if not one.endswith("*"))
        self._starts = tuple(one[:-1] for one in topics if one.endswith("*"))

    def check(self, verb: Verb) -> None:
        """Raise RefusedRequest if the caller may not do this at all."""
        if verb not in self.verbs:
            raise _forbidden()

    def inner(self, topic: str) -> str:
        """Return the topic as the broker knows it. Raises RefusedRequest if it is not the caller's."""
        if not self._fits(topic):
            raise _forbidden()
        return self._prefix + topic

    def outer(self, inner: str) -> str:
        """Return the topic or the receipt as the client knows it."""
        return inner.removeprefix(self._prefix)

    def said(self, text: str) -> str:
        """Return a text of the desk, with the topics as the client knows them."""
        return text.replace(self._prefix, "") if self._prefix else text

    def may_run(self, task: str) -> bool:
        """True if a task is among the token's topics. All tenants share tasks, but each has its own instances."""
        return self._is_whole or task in self._exact or task.startswith(self._starts)

    def may_source(self, source: str) -> bool:
        """True if a source is among the token's topics: as `platform/source`, or its platform. No source is a
        tenant's."""
        platform = source.partition("/")[0]
        is_named = source in self._exact or platform in self._exact or source.startswith(self._starts)
        return not self.tenant and (self._is_whole or is_named)

    def check_source(self, platform: str, source: str) -> None:
        """Raise RefusedRequest if the caller may not use a source."""
        if not self.may_source(f"{platform}/{source}"):
            raise _forbidden()

    @property
    def is_operator(self) -> bool:
        """True if neither a tenant nor topics limit the caller."""
        return not self.tenant and (self._is_whole or "" in self._starts)

    def may_limit(self, kind: str, name: str) -> bool:
        """True if a rate of this kind, or a flow, is of the token's topics. None is a tenant's."""
        if self.tenant or self.is_operator:
            return self.is_operator
        match kind:
            case "topic":
                return self.is_own(name)
            case "platform" | "source":
                return self.may_source(name)
            case _:
                return self.may_run(name)

    def check_limit(self, kind: str, name: str) -> None:
        """Raise RefusedRequest if the caller may not see or change this rate or flow."""
        if not self.may_limit(kind, name):
            raise _forbidden()

    def check_operator(self) -> None:
        """Raise RefusedRequest if a tenant or topics limit the caller."""
        if not self.is_operator:
            raise _forbidden()

    def inner_id(self, instance_id: str) -> str:
        """Return an instance's id as the broker knows it."""
        return self._prefix + instance_id

    def may_name(self, instance_id: str) -> bool:
        """True if an id belongs to no tenant, or to the caller's."""
        return self._is_whole or bool(self._prefix) or PART not in instance_id

    @property
    def shown_tenant(self) -> str | None:
        """The tenant whose instances the caller may see. `None`: all tenants."""
        return None if self._is_whole else self.tenant

    def is_of(self, tenant: str) -> bool:
        """True if the caller may see a tenant's instances."""
        return self.shown_tenant in (None, tenant)

    def is_own(self, inner: str) -> bool:
        """True if a topic of the broker is the caller's."""
        return inner.startswith(self._prefix) and self._fits(inner.removeprefix(self._prefix))

    def inner_receipt(self, receipt: str) -> str | None:
        """Return the receipt as the broker knows it, or None if its topic is not the caller's."""
        return self._prefix + receipt if self._fits(receipt.partition(".")[0]) else None

    def _fits(self, topic: str) -> bool:
        if self._is_whole or topic in self._exact:
            return True
        is_foreign = not self._prefix and PART in topic
        if topic in OPERATORS and not self._prefix:
            return False
        return any(topic.startswith(start) for start in self._starts if not is_foreign or PART in start)


ANYBODY = Caller("anybody", verbs=VERBS, topics=("*",), is_whole=True)
"""The caller of every request while there are no tokens. Such a request can only come from this machine."""


def caller_of(record: TokenRecord) -> Caller:
    return Caller(
        record.name,
        verbs=record.verbs,
        topics=record.topics,
        namespace=record.namespace,
        rate=record.rate,
        most_waiting=record.most_waiting,
        most_topics=record.most_topics,
    )


def _forbidden() -> RefusedRequest:
    return refused(403, "forbidden", "this token may not do that")
