"""The books of a puller: the messages that it has requested and may still receive. Pure."""

from streams.link.frames import parse_headers


class PullInbox:
    """One inbox, and the requests with it.

    `requested` is exact. How it divides over the `open` requests (number -> how many each may still bring, oldest
    first) is a guess until the server's last status of each. Deliveries are many, so they are divided only when `open`
    is read.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.sid = 0
        self.requested = 0
        self.is_retired = False
        self._open: dict[int, int] = {}
        self._unspread = 0

    @property
    def open(self) -> dict[int, int]:
        if self._unspread:
            count, self._unspread = self._unspread, 0
            self._take_from_oldest(count)
        return self._open

    def count_request(self, number: int, count: int) -> None:
        self.open[number] = count
        self.requested += count

    def count_delivery(self) -> None:
        if self.requested:
            self.requested -= 1
            self._unspread += 1

    def count_end(self, number: int, left_over: int | None) -> None:
        """Count that a request has ended, and what it left over: by the server's status, else by our own guess."""
        guess = self.open.pop(number, 0)
        left_over = min(self.requested, guess if left_over is None else left_over)
        self.requested -= left_over
        if left_over > guess:
            self._take_from_oldest(left_over - guess)
        elif self.requested and left_over < guess:  # it brought more than we thought, so another brought less
            oldest = next(iter(self.open), number)
            self.open[oldest] = self.open.get(oldest, 0) + guess - left_over

    def _take_from_oldest(self, count: int) -> None:
        while count:
            number, left = next(iter(self._open.items()))
            if left > count:
                self._open[number] = left - count
                return
            del self._open[number]
            count -= left


def left_over_of(block: bytes | None) -> int | None:
    """Return how many messages a request left over, by the server's last status of it. None: it does not say."""
    told = parse_headers(block).get("Nats-Pending-Messages", "")
    return int(told) if told.isdigit() else None
