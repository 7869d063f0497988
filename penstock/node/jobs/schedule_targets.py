"""The handler, for a node's job worker, of schedules that submit a batch or have a source look, and the check of such a
schedule before it is stored (actors/jobs/rules/schedule_targets.py).

A job that comes twice changes nothing: the batch and the look are known by their names.
"""

from collections.abc import Callable

from actors.batch.desk import BatchDesk
from actors.batch.instances import InstanceExists
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import START_IT, Tasks, UnknownTask
from actors.fetch.ledgers import Ledgers, MissingLedger
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey, Sources
from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.rules.schedule_targets import TOPIC, Look, TargetJob, target_of
from actors.jobs.schedule_desk import IsShown
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Bury, Job, Retry
from actors.runtime.rules.setting_values import near_or
from streams.buckets.files import FileTooLarge
from streams.errors import MalformedSubject

__all__ = ["accepts", "target_handler"]

FINAL = (InstanceExists, BatchRefused, MalformedSubject, FileTooLarge, steering.NotPossible)
"""Another attempt would be told the same."""


def accepts(batches: BatchDesk, tasks: Tasks, sources: Sources) -> Callable[[Schedule, IsShown], None]:
    """Return what raises BadRecurrence for a schedule whose target does not exist, or does not take its body."""

    def accept(wanted: Schedule, is_shown: IsShown) -> None:
        job = target_of(wanted, "topic.name", "name", 1_000)
        if job.look is not None and _key(job.look) not in sources:
            shown = filter(is_shown, map(str, sources.known()))
            hint = near_or(wanted.source, shown, "`penstock sources list` shows all")
            raise BadRecurrence("source", wanted.source, "there is no such source", hint)
        if job.batch is None:
            return
        try:
            batches.new.check(job.batch, has_file=False)
        except UnknownTask as error:
            hint = near_or(wanted.batch, filter(is_shown, tasks.known()), START_IT)
            raise BadRecurrence("batch", wanted.batch, "there is no such task", hint) from error
        except (BatchRefused, FileTooLarge, MalformedSubject) as error:
            raise BadRecurrence("body", str(error), "is not what the batch takes", "correct it") from error

    return accept


def target_handler(batches: BatchDesk, ledgers: Ledgers) -> Handler:
    """Return the handler."""

    async def take(job: Job) -> None:
        wanted = job.read(TargetJob)
        try:
            if wanted.batch is not None:
                await batches.submit(wanted.batch)
            if wanted.look is not None:
                await _look(ledgers, wanted.look)
        except MissingLedger as error:
            raise Bury(f"{wanted.look and wanted.look.source}: no such source") from error
        except steering.TooManyBackfills as error:
            raise Retry(reason=str(error)) from error
        except FINAL as error:
            raise Bury(str(error)) from error

    return Handler(topic=TOPIC, name="schedule targets", take=take, is_async=True)


async def _look(ledgers: Ledgers, look: Look) -> None:
    """Have a source read a window once more. The name is that of a running look, so a repeat changes nothing."""

    def move(ledger: Ledger) -> tuple[Ledger, None]:
        return steering.add_backfill(ledger, look.name, look.start_ms, look.end_ms), None

    await ledgers.move(_key(look), move)


def _key(look: Look) -> SourceKey:
    platform, _, source = look.source.partition("/")
    return SourceKey(platform, source)
