"""Every setting of fetching: its unit, range, default, reason, and the levels at which it may be set.

Help texts, `penstock settings list` and the documentation are printed from this table. The readers check against it.
"""

from typing import Literal

import msgspec

Level = Literal["default", "platform", "source"]
LEVELS: tuple[Level, ...] = ("default", "platform", "source")

Unit = Literal[
    "duration",
    "durations",
    "count",
    "requests/s",
    "orders/s",
    "share",
    "choice",
    "start",
    "label",
    "bound",
    "path",
    "reference",
]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `low`, `high` and `default` are written as a user writes them. `settable_at` is the narrowest level: one
    that is settable at `platform` may be set at `default` and `platform`. A duration with `choices` may be one of these
    words instead, which is 0 in the record, and None for durations."""

    what: str
    unit: Unit
    default: str | int | float | tuple[str, ...]
    why: str
    low: str | int | float = 0
    high: str | int | float = 0
    choices: tuple[str, ...] = ()
    settable_at: Level = "source"

    def levels(self) -> tuple[Level, ...]:
        return LEVELS[: LEVELS.index(self.settable_at) + 1]


SETTINGS: dict[str, Setting] = {
    "start": Setting(
        what="where the reading of a source begins. -90d counts back from its first use",
        unit="start",
        default="-90d",
        why="three months, the span that merchants ask for when a shop joins",
    ),
    "slice": Setting(
        what="length of the window that one reading covers. auto: it follows the orders",
        unit="duration",
        low="1s",
        high="31d",
        choices=("auto",),
        default="auto",
        why="some pages in the past, days long if there are few orders, and seconds to a minute at the end of time",
    ),
    "settle": Setting(
        what="distance from now to the end of the newest window, so that the platform shows all its orders",
        unit="duration",
        low="0s",
        high="1d",
        default="30s",
        why="covers clocks that differ by seconds and read replicas that lag. Adapters ask for more where they know",
    ),
    "overlap_before": Setting(
        what="how much earlier than its slice a query begins",
        unit="duration",
        low="0s",
        high="1h",
        default="3s",
        why="covers records on the edge whose time moved by a few seconds. Key and version remove the repeats",
    ),
    "overlap_after": Setting(
        what="how much later than its slice a query ends",
        unit="duration",
        low="0s",
        high="1h",
        default="1s",
        why="platforms that keep time in whole seconds round it either way",
    ),
    "max_open": Setting(
        what="slices of the live tail that are open at once",
        unit="count",
        low=1,
        high=1000,
        default=64,
        why="enough to keep a cluster busy on one shop, and the ledger stays below ten kilobytes",
    ),
    "max_holes": Setting(
        what="number of holes at which cutting stops until a person acts",
        unit="count",
        low=1,
        high=2000,
        default=500,
        why="a shop that fails everywhere must not make holes without end, and a ledger has to fit into one message",
    ),
    "back_open": Setting(
        what="slices of backfills and of second looks that are open at once",
        unit="count",
        low=1,
        high=64,
        default=4,
        why="old windows may wait. The tail has to keep most of a source's rate",
    ),
    "again": Setting(
        what="how long after its end a window is read once more. An empty list switches it off. auto: as the adapter "
        "says, and 10m, 2h, 1d if it says nothing",
        unit="durations",
        low="1s",
        high="30d",
        choices=("auto",),
        default="auto",
        why="most late orders come within minutes, some after hours. The day is the promised horizon",
    ),
    "sweep": Setting(
        what="how often all that was read is read again, and only what differs is published. auto: as the adapter says",
        unit="duration",
        low="1s",
        high="365d",
        choices=("auto",),
        default="auto",
        why="only platforms whose time of change does not move with each change need it, and it costs a whole reading",
    ),
    "again_slice": Setting(
        what="length of the window of a second look. With slice=auto it follows the orders",
        unit="duration",
        low="1s",
        high="31d",
        default="10m",
        why="a second look mostly finds nothing new: one request covers ten slices",
    ),
    "timeout": Setting(
        what="longest time for one attempt at a slice, all pages together",
        unit="duration",
        low="1s",
        high="1h",
        default="60s",
        why="a slice of a busy shop has some ten pages. A slice that takes longer is better split",
    ),
    "request_timeout": Setting(
        what="longest time for one request to the platform",
        unit="duration",
        low="100ms",
        high="10m",
        default="15s",
        why="slow platforms answer in some seconds. After this time an answer hardly ever comes",
    ),
    "split_after": Setting(
        what="number of timeouts after which a slice is split in two. 0 never splits",
        unit="count",
        low=0,
        high=100,
        default=1,
        why="the first timeout may come from the network, a second one comes from the window",
    ),
    "retries": Setting(
        what="tries after the first before a slice is given up",
        unit="count",
        low=0,
        high=100,
        default=5,
        why="with the pauses below it outlasts a short outage. After that a person should know",
    ),
    "backoff": Setting(
        what="how the pause grows: attempt times base, or doubled each time",
        unit="choice",
        choices=("linear", "exponential"),
        default="linear",
        why="operators expect linear growth, and it reaches minutes soon enough",
    ),
    "retry_base": Setting(
        what="pause after the first failed attempt",
        unit="duration",
        low="1ms",
        high="1h",
        default="5s",
        why="most failures of a platform are over within seconds",
    ),
    "retry_cap": Setting(
        what="longest pause, spread included",
        unit="duration",
        low="1ms",
        high="1d",
        default="10m",
        why="bounds the time until a slice is given up",
    ),
    "retry_spread": Setting(
        what="share of the pause that chance may add",
        unit="share",
        low=0,
        high=1,
        default=0.2,
        why="slices that failed together should not come back together",
    ),
    "down_after": Setting(
        what="how long a source is unreachable before a notice is sent",
        unit="duration",
        low="0s",
        high="1d",
        default="2m",
        why="shorter breaks need no person. By then every shop of a platform has noticed, so one notice covers all",
    ),
    "losses": Setting(
        what="how many holders of a slice may vanish before it is given up",
        unit="count",
        low=0,
        high=1000,
        default=10,
        why="nodes are killed for many reasons. A slice that kills ten of them is the reason itself",
    ),
    "stale_after": Setting(
        what="age at which the monitor takes a held slice away",
        unit="duration",
        low="1s",
        high="1d",
        default="3m",
        why="three timeouts: a live holder has ended the attempt long before",
    ),
    "scan_every": Setting(
        what="how often the monitor looks at every ledger",
        unit="duration",
        low="100ms",
        high="1h",
        default="5s",
        settable_at="default",
        why="a second check beside the ack wait. The node follows the ledgers, so a scan reads memory only",
    ),
    "reoffer": Setting(
        what="time after which a slice that nobody took is offered again",
        unit="duration",
        low="1s",
        high="1h",
        default="30s",
        why="offers are lost only with the queue itself. The queue refuses repeats, so they cost little",
    ),
    "claim_retries": Setting(
        what="how often a move is decided again after another node changed the ledger first",
        unit="count",
        low=0,
        high=100,
        default=10,
        why="a lost race is settled in milliseconds. Ten in a row mean that something is wrong",
    ),
    "concurrency": Setting(
        what="slices that one node reads at once from one platform",
        unit="count",
        low=1,
        high=256,
        default=8,
        settable_at="platform",
        why="hides the platform's latency. The rates below protect the platform",
    ),
    "rate": Setting(
        what="requests a second to one source, over the whole cluster",
        unit="requests/s",
        low=0.001,
        high=100_000,
        default=10,
        why="the limit that common platforms set for one shop. Their own limits come with the adapter",
    ),
    "platform_rate": Setting(
        what="requests a second to one platform, over the whole cluster. 0 sets no limit",
        unit="requests/s",
        low=0,
        high=1_000_000,
        default=0,
        settable_at="platform",
        why="only platforms that count by application need it",
    ),
    "burst": Setting(
        what="requests that may go at once after a pause",
        unit="count",
        low=1,
        high=10_000,
        default=10,
        why="one second's worth at the default rate",
    ),
    "weight": Setting(
        what="the source's part of the platform's rates, against the other sources that have work",
        unit="share",
        low=0.01,
        high=1000,
        default=1,
        why="all are alike. A shop with weight 3 has three times the requests of one with 1, while both have work",
    ),
    "throttle_wait": Setting(
        what="pause of a throttled source when the platform names no time",
        unit="duration",
        low="100ms",
        high="1h",
        default="10s",
        why="longer than the one-second buckets in which most platforms count",
    ),
    "throttle_cap": Setting(
        what="longest pause that a platform may ask for",
        unit="duration",
        low="1s",
        high="7d",
        default="1h",
        why="a mistaken Retry-After must not stop a shop for years",
    ),
    "inflow": Setting(
        what="orders a second that may enter, over the whole cluster. 0 sets no limit",
        unit="orders/s",
        low=0,
        high=1_000_000,
        default=0,
        why="the backlog shows the back end's own pace. A fixed limit is for those who know theirs",
    ),
    "sink_backlog": Setting(
        what="number of orders waiting for the sink at which fetching stops",
        unit="count",
        low=1,
        high=100_000_000,
        default=100_000,
        settable_at="default",
        why="minutes of a database's work: it absorbs peaks and stays far below the stream's size",
    ),
    "lag_alarm": Setting(
        what="age of the watermark at which an event says that a source lags",
        unit="duration",
        low="1s",
        high="30d",
        default="15m",
        why="later than any ordinary retry, earlier than a merchant's call",
    ),
    "pin": Setting(
        what="label or name of the only nodes that may read this. Empty: all nodes",
        unit="label",
        default="",
        why="for platforms that allow listed addresses only, or data that must stay in a place",
    ),
    "zone": Setting(
        what="zone whose nodes alone may read this, or shard:7 for the zone that owns it. Empty: all nodes",
        unit="bound",
        default="",
        why="for data that must stay in a zone, and shops that move with their shard",
    ),
    "region_key": Setting(
        what="where the key by which an order finds its shard is in the order, as address.country. Empty: nowhere",
        unit="path",
        default="",
        why="so that an order of another zone is not stored here. It is left out, with a line for the audit",
    ),
    "webhook": Setting(
        what="where notices of holes are sent: env:NAME, file:/path or a URL. Empty: nowhere",
        unit="reference",
        default="",
        why="the log and the events always have them",
    ),
}
