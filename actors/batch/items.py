"""Items and results of instances on the stream ITEMS: the chunks that a split staged, and their results.

A chunk stands under the fence of the split that staged it. A split begun anew has another fence, so nobody reads what a
silent one still writes. The chunks that a streaming split had staged stand, and another split continues after them.
Within one fence a repeat writes the same chunk to the same place. A result is written once: the first writer of a round
wins, and the second one learns it.

Chunks are one message each, so a chunk is there completely or not at all. The seal of a split says which chunks belong
to it.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from actors.batch.rules.record import Instance, earlier_rounds, fence_of, made_so_far
from actors.batch.rules.rounds import missing_round
from actors.runtime.logs import fields
from streams.errors import MalformedMessage, NoStream, OutcomeUnknown, Refused, RevisionConflict
from streams.link.connection import Connection
from streams.messages.batch import Chunk, ChunkResult, decode_chunk, decode_result, encode_message
from streams.publish.marked import MarkedWriter
from streams.publish.publisher import Outgoing, Publisher
from streams.reads.log import Behind, LogEntry, extent_of, last_entries, last_entry, next_entry, purge_subject, read_log

log = logging.getLogger(__name__)

PAGE = 64
"""Messages that one request reads."""


class Gap(NamedTuple):
    """Missing chunks in a row, the indexes of their items, and their results."""

    chunks: range
    indexes: range
    results: list[ChunkResult]


class StreamEnds(NamedTuple):
    """The last sequences of the streams ITEMS and WORK at one moment."""

    items: int
    work: int


class BatchItems:
    """The items of all instances. `instance_id` is a subject token."""

    def __init__(self, connection: Connection, publisher: Publisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._namespace = connection.namespace
        self._stream = connection.namespace.stream("ITEMS")
        self._writer = MarkedWriter(connection, publisher, self._stream)
        self._logged: set[tuple[str, int]] = set()

    async def stage(
        self, instance_id: str, fence: int, first_chunk: int, chunks: Sequence[Chunk], *, created_ms: int = 0
    ) -> None:
        """Store chunks from number `first_chunk` on. `created_ms`: of the instance, so that its chunks are no
        repeats of those of a deleted one of the same id. Raises Refused (StoreFull, TooLarge), OutcomeUnknown,
        Disconnected: then stage them again, which is harmless."""
        messages = [
            Outgoing(
                self._chunk_subject(instance_id, fence, number),
                encode_message(chunk),
                f"{instance_id}.{fence}.{number}.{created_ms}",
            )
            for number, chunk in enumerate(chunks, first_chunk)
        ]
        for outcome in await self._publisher.publish_many(messages):
            if isinstance(outcome, Refused):
                raise outcome

    async def chunk(self, record: Instance, number: int) -> Chunk | None:
        """Return a chunk. `None`: it is missing, or something else is in its place."""
        return (await self.chunks(record, [number]))[0]

    async def chunks(self, record: Instance, numbers: Sequence[int]) -> list[Chunk | None]:
        """Return several chunks in the order of `numbers`. `None` stands for missing ones. Any replica replies first.
        The leader replies for the chunks that this replica does not have: it may be behind."""
        subjects = self._chunk_subjects(record, numbers)
        return await self._chunks_among(await last_entries(self._connection, self._stream, subjects), subjects)

    async def with_results(
        self, record: Instance, numbers: Sequence[int]
    ) -> list[tuple[Chunk | None, list[ChunkResult]]]:
        """Return several chunks, as `chunks` does, each with all results of it that were counted. One request reads
        both: if no chunk had a result, an answer without messages would not tell whether the replica is behind."""
        subjects, patterns = self._chunk_subjects(record, numbers), self._result_patterns(record, numbers)
        both = [each for pair in zip(subjects, patterns, strict=True) for each in pair]
        try:
            found = await last_entries(self._connection, self._stream, both, least_seq=record.counted_seq)
        except Behind:
            results = await self.results(record, numbers, least_seq=record.counted_seq)
            return list(zip(await self.chunks(record, numbers), results.values(), strict=True))
        chunks = await self._chunks_among(found, subjects)
        ends = self._results_among(record, numbers, (found[each] for each in found.keys() - subjects))
        return list(zip(chunks, ends.values(), strict=True))

    async def gap(self, record: Instance, number: int) -> Gap:
        """Return the gap in which this missing chunk is."""
        while number and await self.chunk(record, number - 1) is None:
            number -= 1
        return await self.lost(record, number)

    async def lost(self, record: Instance, number: int) -> Gap:
        """Return the missing chunks from `number` on. The gap is empty if the chunk before is missing too. A chunk
        knows where its items begin, so the chunks beside the gap give its ends."""
        first, results, made = 0, list[ChunkResult](), made_so_far(record)
        assert made is not None
        if number:
            before = await self.chunk(record, number - 1)
            if before is None:
                return Gap(range(0), range(0), [])
            first = before.first + len(before.items)
        for start in range(number, made.chunks, PAGE):
            numbers = range(start, min(start + PAGE, made.chunks))
            found = await self.results(record, numbers, least_seq=record.counted_seq)
            for at, chunk in zip(numbers, await self.chunks(record, numbers), strict=True):
                if chunk is not None:
                    return Gap(range(number, at), range(first, chunk.first), results)
                results += found[at]
        return Gap(range(number, made.chunks), range(first, made.items), results)

    async def results(
        self, record: Instance, numbers: Sequence[int], *, least_seq: int = 0
    ) -> dict[int, list[ChunkResult]]:
        """Return the results of chunks by chunk, each in the order of their rounds. Any replica replies first. The
        leader replies if that one may not have all that is stored up to `least_seq`."""
        patterns = self._result_patterns(record, numbers)
        try:
            entries = [*(await last_entries(self._connection, self._stream, patterns, least_seq=least_seq)).values()]
        except Behind:
            entries = [entry for pattern in patterns for entry in await self._all_of_leader(pattern)]
        return self._results_among(record, numbers, entries)

    async def rounds(self, record: Instance, chunk: int, number: int) -> list[ChunkResult] | None:
        """Return the results of a chunk in the order of their rounds. `None`: one is missing that is needed to know
        what round `number` must run."""
        found, due = (await self.results(record, [chunk]))[chunk], earlier_rounds(record, chunk)
        while (missing := missing_round(found, number, due)) is not None:
            subject = self._namespace.subject("results", record.instance_id, str(chunk), str(missing))
            entry = await self._of_leader(subject)
            if entry is None or (result := self._result(entry, record)) is None:
                return None
            found.append(result)
        return sorted(found, key=lambda each: each.round)

    async def add_result(self, record: Instance, result: ChunkResult) -> bool:
        """Store a result. Return False if that round of the chunk has one already: ours, of a try before, or another
        node's. A message in its place that is no result, or one of an earlier instance of this id, is replaced. Raises
        OutcomeUnknown if another result was on its way, which may be dropped with the leader of a cluster. A repeat is
        harmless."""
        subject = self._namespace.subject("results", record.instance_id, str(result.chunk), str(result.round))
        result = replace(result, created_ms=record.created_ms)
        expected_seq = 0
        while True:
            try:
                await self._publisher.publish(subject, encode_message(result), expected_seq=expected_seq)
            except RevisionConflict as conflict:
                entry = await self._of_leader(subject)
                if entry is None and conflict.actual is None:
                    raise OutcomeUnknown("another result is on its way", subject=subject) from conflict
                if entry is None or entry.seq == expected_seq or self._stands(entry, record):
                    return False
                expected_seq = entry.seq
            else:
                return True

    async def begun(
        self, instance_id: str, chunk: int, number: int, *, if_unreadable: Sequence[int] = ()
    ) -> tuple[list[int], int]:
        """Return the begun indexes of a round, and the sequence to name at the next mark (0: none yet).
        `if_unreadable`: the indexes to return if the mark cannot be decoded."""
        subject = self._namespace.subject("begun", instance_id, str(chunk), str(number))
        found = await last_entries(self._connection, self._stream, [subject])
        if subject not in found:
            return [], 0
        entry = found[subject]
        try:
            return msgspec.json.decode(entry.payload, type=list[int]), entry.seq
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._log_unreadable(entry, error)
            return list(if_unreadable), entry.seq

    def next_mark(self) -> str:
        """Return a unique name for a mark."""
        return self._writer.next_mark()

    async def begin(
        self,
        instance_id: str,
        chunk: int,
        number: int,
        indexes: Sequence[int],
        *,
        expected_seq: int,
        mark: str | None = None,
    ) -> int:
        """Mark items of a round as begun, before they begin. Return the sequence of the mark. A call that may be
        repeated with the same arguments has a name for it in `mark`: then a stored earlier call is found.
        Raises RevisionConflict when another node has marked some meanwhile."""
        subject = self._namespace.subject("begun", instance_id, str(chunk), str(number))
        return await self._writer.write(subject, msgspec.json.encode(indexes), expected=expected_seq, again=mark)

    async def results_after(self, record: Instance, seq: int) -> AsyncIterator[tuple[int, ChunkResult]]:
        """Yield results stored after `seq`, with their sequences, in the order in which they were stored."""
        pattern = self._namespace.pattern("results", record.instance_id, ">")
        async for entry in read_log(self._connection, self._stream, pattern, start_seq=seq + 1, page=PAGE):
            if (result := self._result(entry, record)) is not None:
                yield entry.seq, result

    async def ends(self) -> StreamEnds:
        """Return up to where the streams are written now. What is stored later lies behind that."""
        work = await extent_of(self._connection, self._namespace.stream("WORK"))
        try:
            return StreamEnds((await extent_of(self._connection, self._stream)).last_seq, work.last_seq)
        except NoStream:
            return StreamEnds(0, work.last_seq)

    async def drop(self, instance_id: str, task: str, upto: StreamEnds) -> None:
        """Remove everything of an instance, and the pointers at its work, up to these ends. A repeat is harmless."""
        work = self._namespace.pattern("work", "batch", task, "*", instance_id, "*")
        await purge_subject(self._connection, self._namespace.stream("WORK"), work, before_seq=upto.work + 1)
        for first in ("items", "results", "begun"):
            pattern = self._namespace.pattern(first, instance_id, ">")
            try:
                await purge_subject(self._connection, self._stream, pattern, before_seq=upto.items + 1)
            except NoStream:
                return

    async def drop_split(self, instance_id: str, fence: int) -> None:
        """Remove the chunks that the split of this fence has staged. A repeat is harmless."""
        await purge_subject(
            self._connection, self._stream, self._namespace.pattern("items", instance_id, str(fence), "*")
        )

    async def _of_leader(self, subject: str) -> LogEntry | None:
        return await last_entry(self._connection, self._stream, subject)

    async def _all_of_leader(self, pattern: str) -> list[LogEntry]:
        found, seq = list[LogEntry](), 1
        while (entry := await next_entry(self._connection, self._stream, pattern, start_seq=seq)) is not None:
            found.append(entry)
            seq = entry.seq + 1
        return found

    async def _chunks_among(self, found: Mapping[str, LogEntry], subjects: Sequence[str]) -> list[Chunk | None]:
        entries = [found.get(subject) or await self._of_leader(subject) for subject in subjects]
        return [None if entry is None else _readable(entry) for entry in entries]

    def _results_among(
        self, record: Instance, numbers: Sequence[int], entries: Iterable[LogEntry]
    ) -> dict[int, list[ChunkResult]]:
        results: dict[int, list[ChunkResult]] = {number: [] for number in numbers}
        for entry in entries:
            if (result := self._result(entry, record)) is not None:
                results[result.chunk].append(result)
        return {number: sorted(found, key=lambda each: each.round) for number, found in results.items()}

    def _result(self, entry: LogEntry, record: Instance) -> ChunkResult | None:
        """Return the result at its place. `None`, and a line in the log, if it is no result of the instance there."""
        result = self._readable_result(entry)
        if result is not None and result.created_ms not in (0, record.created_ms):
            self._log_unreadable(entry, ValueError("it is of another batch of this id"))
            return None
        return result

    def _stands(self, entry: LogEntry, record: Instance) -> bool:
        """Return whether a message is a result that one of the instance may not replace."""
        result = self._readable_result(entry)
        return result is not None and (result.created_ms == 0 or result.created_ms >= record.created_ms)

    def _readable_result(self, entry: LogEntry) -> ChunkResult | None:
        try:
            result = decode_result(entry.payload)
        except MalformedMessage as error:
            self._log_unreadable(entry, error)
            return None
        if entry.subject.endswith(f".{result.chunk}.{result.round}"):
            return result
        self._log_unreadable(entry, ValueError(f"it is of chunk {result.chunk}, round {result.round}"))
        return None

    def _log_unreadable(self, entry: LogEntry, error: Exception) -> None:
        if (entry.subject, entry.seq) not in self._logged:
            self._logged.add((entry.subject, entry.seq))
            log.warning("items.unreadable", extra=fields(subject=entry.subject, seq=entry.seq, error=str(error)))

    def _chunk_subject(self, instance_id: str, fence: int, number: int) -> str:
        return self._namespace.subject("items", instance_id, str(fence), str(number))

    def _chunk_subjects(self, record: Instance, numbers: Sequence[int]) -> list[str]:
        return [self._chunk_subject(record.instance_id, fence_of(record, number), number) for number in numbers]

    def _result_patterns(self, record: Instance, numbers: Sequence[int]) -> list[str]:
        return [self._namespace.pattern("results", record.instance_id, str(number), "*") for number in numbers]


def _readable(entry: LogEntry) -> Chunk | None:
    try:
        return decode_chunk(entry.payload)
    except MalformedMessage:
        return None
