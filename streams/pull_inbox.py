"""The books of a puller: what it has asked for and may still be sent. Pure."""

from streams.frames import parse_headers


class PullInbox:
    """One subject to be answered on, and what was asked for with it.

    `requested` is exact; how it is spread over the `open` requests (number -> how many it may still bring, oldest
    first) is a guess until the server's last word on each. Deliveries are spread when somebody looks: there are many.
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
        """Count that a request has ended, with what it left over by the server's word, else by our own guess."""
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
    """Return how many messages a request leaves over by the server's last word on it; None if it does not say."""
    told = parse_headers(block).get("Nats-Pending-Messages", "")
    return int(told) if told.isdigit() else None
