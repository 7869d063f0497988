"""The records of one installation, as commands read and change them: sources, ledgers, settings, live nodes.

Commands are short, so they watch nothing. Each reads what it needs, changes a ledger by a pure move under
compare-and-set, and publishes what it did as an event. A record that a person broke is reported apart, and stops only
the commands that need it.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from actors.fetch.ledgers import BrokenLedger, Contended, MissingLedger, open_ledgers, read_ledger
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.steering import NotPossible
from actors.fetch.settings.desk import Desk, read_levels
from actors.fetch.settings.levels import LevelName, Levels
from actors.fetch.sources import SourceKey, SourceRecord
from actors.fetch.stored import Broken, decoded, stored_adapter, stored_ledgers, stored_sources
from actors.runtime.events import outgoing_event
from actors.runtime.membership import living
from actors.runtime.rules.setting_values import near_or
from actors.runtime.supervisor import one_error
from penstock.errors import PenstockError, UsageError
from penstock.node.fetch.source_doors import open_source_desk
from penstock.node.session import Session
from platforms.adapter import Adapter
from platforms.errors import BadDeclaration
from platforms.registry import NoSuchAdapter
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, Clock
from streams.errors import MalformedSubject
from streams.messages.fetch import FetchEvent
from streams.publish.publisher import Publisher

__all__ = ["NoSuchSource", "Records"]

R = TypeVar("R")


class NoSuchSource(UsageError):
    """No record and no ledger has this name."""

    def __init__(self, source: SourceKey, known: list[str]) -> None:
        hint = near_or(str(source), known, "`penstock sources list` shows all")
        super().__init__(f"no source {source}; {hint if known else 'there is none yet: penstock sources add'}")


class Records:
    """Reads and changes the records that a session reaches."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.connection = session.connection
        self.publisher: Publisher = session.publisher
        self.namespace = session.namespace
        self.desk: Desk = session.settings_desk()
        self.settings: Bucket[bytes] = self.desk.bucket
        self.ledgers: Bucket[bytes] = session.bucket("LEDGERS")
        self.clock: Clock = SYSTEM
        self.source_desk = open_source_desk(session)
        self.importer = self.source_desk.importer

    def now_ms(self) -> int:
        return self.clock.now_ms()

    # ---- reading

    async def sources(self, pattern: str = ">") -> dict[SourceKey, SourceRecord | Broken]:
        """Return the source records whose `platform.source` matches, by name."""
        return await stored_sources(self.settings, pattern)

    async def source(self, source: SourceKey) -> SourceRecord | None:
        """Return one source's record, None if there is none. Raises PenstockError for a broken one."""
        entry = await self.settings.get(f"source.{source.key}")
        record = None if entry is None else decoded(entry, SourceRecord)
        if isinstance(record, Broken):
            raise PenstockError(
                f"{source}: its record does not decode: {record.why}; remove the source and add it again"
            )
        return record

    async def all_ledgers(self, pattern: str = ">") -> dict[SourceKey, Ledger | Broken]:
        """Return the ledgers whose `platform.source` matches, by name."""
        return await stored_ledgers(self.ledgers, pattern)

    async def ledger(self, source: SourceKey) -> Ledger | None:
        """Return one source's ledger, None if there is none. Raises PenstockError for a broken one."""
        entry = await self.ledgers.get(source.key)
        try:
            return None if entry is None else read_ledger(source, entry.value)
        except BrokenLedger as error:
            raise PenstockError(str(error)) from error

    async def need(self, source: SourceKey) -> tuple[SourceRecord | None, Ledger | None]:
        """Return a source's record and ledger, one of which exists. Raises NoSuchSource naming the nearest."""
        record, ledger = await self.source(source), await self.ledger(source)
        if record is None and ledger is None:
            raise NoSuchSource(source, [str(known) for known in {**await self.sources(), **await self.all_ledgers()}])
        return record, ledger

    async def levels(self) -> Levels:
        """Return the stored settings, as far as they are in force."""
        return await read_levels(self.desk)

    async def settings_of(self, source: SourceKey) -> FetchSettings:
        """Return the settings in force for a source."""
        return (await self.levels()).settings(LevelName(source.platform, source.source))

    async def adapter(self, name: str) -> Adapter:
        """Return an adapter by name: a stored one, else a built-in one. Raises UsageError with the nearest name."""
        try:
            return await stored_adapter(self.settings, name)
        except NoSuchAdapter as error:
            raise UsageError(str(error)) from error
        except (BadDeclaration, MalformedSubject, msgspec.DecodeError) as error:
            raise UsageError(f"adapter {name[:64]!r}: {error}") from error

    async def node_names(self, role: str) -> list[str]:
        """Return the names of the live nodes with a role, by their own records. A record without roles has all
        roles."""
        nodes = await living(self.session.bucket("NODES"))
        return [node.node for node in nodes if node.has_role(role)]

    # ---- changing

    async def move(self, source: SourceKey, move: Callable[[Ledger], tuple[Ledger, R]]) -> R:
        """Change a source's ledger. Raises UsageError for a move that is not possible. Raises PenstockError if there is
        no ledger, if it is broken, or if others changed it again and again."""
        try:
            with one_error():
                async with open_ledgers(self.ledgers) as ledgers:
                    return await ledgers.move(source, move)
        except NotPossible as error:
            raise UsageError(f"{source}: {error}") from error
        except (MissingLedger, Contended, BrokenLedger) as error:
            raise PenstockError(str(error)) from error

    async def create_ledger(self, source: SourceKey, ledger: Ledger) -> None:
        """Store the first ledger of a source. Raises RevisionConflict if there is one."""
        await self.ledgers.create(source.key, msgspec.json.encode(ledger))

    async def tell(self, *events: FetchEvent) -> None:
        """Publish events about what was done."""
        await self.publisher.publish_many([outgoing_event(self.namespace, event) for event in events])
