"""What waits for a person and is of no source alone: stuck consumers, refused settings, dead letters.

The leading monitor looks for them, and StandingNotices reports them.
"""

from collections.abc import Iterable, Mapping, Sequence

from actors.fetch.rules.slices import MalformedSliceId, parse_slice_id
from actors.fetch.settings.watch import RefusedLevel
from actors.runtime.notices.standing import StandingKind
from actors.runtime.rules.notices import MOST_NAMED
from actors.runtime.rules.standing import Trouble
from actors.runtime.rules.texts import some_of

AGAIN_MS = 3_600_000
"""While dead letters only grow in number, a notice an hour is enough."""


def _some(troubles: Sequence[Trouble]) -> str:
    return some_of([trouble.text for trouble in troubles], MOST_NAMED)


STUCK = StandingKind(
    name="consumer_stuck",
    source="consumers",
    describe=lambda troubles: f"the server hands out nothing, though nodes ask, by {_some(troubles)}",
    what_to_do="look at each with `nats consumer info STREAM CONSUMER`; on a cluster have its leader step down",
    over="over: every consumer hands out messages again",
)
REFUSED = StandingKind(
    name="settings_refused",
    source="settings",
    describe=lambda troubles: f"not in force, and the last good ones stay: {_some(troubles)}",
    what_to_do="mend each with `penstock settings set`, or put its earlier value back",
    over="over: all settings are in force",
)
DEAD = StandingKind(
    name="dead_letters",
    source="dead letters",
    describe=lambda troubles: f"messages were given up: {_some(troubles)}",
    what_to_do="penstock dead list, then mend the cause, and replay or drop them",
    over="over: no dead letter is left",
    again_ms=AGAIN_MS,
)


def stuck_consumers(stuck: Iterable[tuple[str, str, int]]) -> dict[str, Trouble]:
    """Return the troubles of consumers that are stuck, each as its stream, its name, and what waits."""
    return {f"{stream} {name}": Trouble(1, f"{name} of {stream} ({count} wait)") for stream, name, count in stuck}


def refused_settings(refused: Iterable[RefusedLevel]) -> dict[str, Trouble]:
    """Return the troubles of levels of settings that are not in force."""
    return {each.key: Trouble(each.revision, f"{each.key}: {each.reason}") for each in refused}


def dead_letters(counts: Mapping[tuple[str, str], int]) -> dict[str, Trouble]:
    """Return the troubles of dead letters, by engine and name. Both empty: there are too many to tell."""
    return {
        f"{engine} {name}": Trouble(count, f"{count} of {engine} {name}" if engine else f"{count} in all")
        for (engine, name), count in counts.items()
        if count
    }


def is_hole_letter(engine: str, dead_id: str) -> bool:
    """Return whether a dead letter is of a hole. Holes have notices of their own."""
    if engine != "fetch":
        return False
    try:
        parse_slice_id(dead_id.rpartition("_")[2])
    except MalformedSliceId:
        return False
    return True
