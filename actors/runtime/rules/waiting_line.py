"""In which order those that wait for one rate get it: by the weights of their members, and within a member by arrival.

Start-time fair queueing (Goyal, Vin and Cheng 1996). A member that waits all the time has its weight's part. One that
comes after a pause is served before those that had much in the meantime, but it is owed nothing for the pause. Pure but
for its memory, which ends with the last one that waits.
"""

import itertools
from collections.abc import Iterator


class LinePlace:
    """One request's place in a line. `is_blocked`: something else is in its way, so it keeps nobody waiting."""

    __slots__ = ("is_blocked", "member", "number")

    def __init__(self, member: str, number: int) -> None:
        self.member = member
        self.number = number
        self.is_blocked = False


class _Member:
    """`cost`: what one request costs it. `due`: where its next one begins, by what it has had."""

    __slots__ = ("cost", "due", "places")

    def __init__(self) -> None:
        self.cost = 1.0
        self.due = 0.0
        self.places: list[LinePlace] = []

    def starts(self, now: float, own: LinePlace) -> Iterator[tuple[float, LinePlace]]:
        """Yield each request that is not blocked, and `own`, with where it begins."""
        start = max(now, self.due)
        for place in self.places:
            if not place.is_blocked or place is own:
                yield start, place
                start += self.cost


class WaitingLine:
    """The requests of one node that wait for one rate."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._waiting = 0
        self._now = 0.0
        """Where the request that was served last began."""
        self._number = 0

    def __len__(self) -> int:
        return self._waiting

    def enter(self, member: str, weight: float) -> LinePlace:
        """Wait from now on."""
        self._number += 1
        self._waiting += 1
        found = self._members.setdefault(member, _Member())
        found.cost = 1 / weight
        found.places.append(place := LinePlace(member, self._number))
        return place

    def ahead(self, place: LinePlace) -> int:
        """Return how many are to be served before it, if it is not blocked."""
        if len(self._members) == 1:  # as most lines are, and each that waits calls this often
            earlier = itertools.takewhile(lambda each: each is not place, self._members[place.member].places)
            return sum(not each.is_blocked for each in earlier)
        own = next(start for start, each in self._members[place.member].starts(self._now, place) if each is place)
        return sum(
            (start, each.number) < (own, place.number)
            for member in self._members.values()
            for start, each in member.starts(self._now, place)
        )

    def leave(self, place: LinePlace, *, is_served: bool) -> None:
        """Wait no longer."""
        member = self._members[place.member]
        member.places.remove(place)
        self._waiting -= 1
        if is_served:
            self._now = max(self._now, member.due)
            member.due = self._now + member.cost
        if not self._waiting:
            self._members.clear()
            self._now = 0.0
