"""Every setting of fetching: its unit, range, default, reason, and the levels at which it may be set.

Help texts, `penstock settings list` and the documentation are printed from this table; the readers check by it.
"""

from typing import Literal

import msgspec

Level = Literal["default", "platform", "source"]
LEVELS: tuple[Level, ...] = ("default", "platform", "source")

Unit = Literal[
    "duration", "durations", "count", "requests/s", "orders/s", "share", "choice", "start", "label", "reference"
]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `low`, `high` and `default` are written as a user writes them. `settable_at` is the narrowest level:
    one that is settable at `platform` may be set at `default` and `platform`."""

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
        what="from where on a source is read; -90d counts back from its first use",
        unit="start",
        default="-90d",
        why="three months, as merchants asked for when a shop joins",
    ),
    "slice": Setting(
        what="length of the window that is read in one go",
        unit="duration",
        low="1s",
        high="31d",
        default="60s",
        why="short enough to spread a busy shop over nodes and to lose little work, long enough to hold a page",
    ),
    "settle": Setting(
        what="how far behind now a window may end, so that the platform shows all of it",
        unit="duration",
        low="0s",
        high="1d",
        default="30s",
        why="covers clocks that differ by seconds and read replicas that lag; adapters ask for more where they know",
    ),
    "overlap_before": Setting(
        what="how much earlier than its slice a query begins",
        unit="duration",
        low="0s",
        high="1h",
        default="3s",
        why="records on the edge whose time moved by a few seconds; repeats are sorted out by key and version",
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
        what="holes at which cutting stops until somebody looks",
        unit="count",
        low=1,
        high=2000,
        default=500,
        why="a shop that fails everywhere must not dig on for ever, and a ledger has to fit into one message",
    ),
    "back_open": Setting(
        what="slices of backfills, and of second looks, that are open at once",
        unit="count",
        low=1,
        high=64,
        default=4,
        why="old windows may wait; the tail has to keep most of a source's rate",
    ),
    "again": Setting(
        what="how long after its end a window is looked at once more; an empty list switches it off",
        unit="durations",
        low="1s",
        high="30d",
        default=("10m", "2h", "1d"),
        why="late orders: most within minutes, some after hours; the day is the promised horizon",
    ),
    "again_slice": Setting(
        what="length of the window of a second look",
        unit="duration",
        low="1s",
        high="31d",
        default="10m",
        why="mostly nothing is new: ten slices for the price of one request",
    ),
    "timeout": Setting(
        what="longest time for one attempt at a slice, all pages together",
        unit="duration",
        low="1s",
        high="1h",
        default="60s",
        why="a slice of a busy shop is some ten pages; what takes longer is better split",
    ),
    "request_timeout": Setting(
        what="longest time for one request to the platform",
        unit="duration",
        low="100ms",
        high="10m",
        default="15s",
        why="slow platforms answer in some seconds; beyond that the answer hardly ever comes",
    ),
    "split_after": Setting(
        what="timeouts of a slice after which it is split in two; 0 never splits",
        unit="count",
        low=0,
        high=100,
        default=1,
        why="the first timeout may be the network's, a second one is the window's",
    ),
    "retries": Setting(
        what="tries after the first before a slice is given up",
        unit="count",
        low=0,
        high=100,
        default=5,
        why="with the pauses below it outlasts a short outage; past that a person should know",
    ),
    "backoff": Setting(
        what="how the pause grows: attempt times base, or doubled each time",
        unit="choice",
        choices=("linear", "exponential"),
        default="linear",
        why="linear is what merchants' operators expect and reaches minutes soon enough",
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
        what="how long a source cannot be reached at all before somebody is told",
        unit="duration",
        low="0s",
        high="1d",
        default="2m",
        why="shorter breaks need nobody, and by then all shops of a platform that is away have noticed: one notice",
    ),
    "losses": Setting(
        what="how many holders of a slice may vanish before it is given up",
        unit="count",
        low=0,
        high=1000,
        default=10,
        why="nodes are killed for many reasons; a slice that takes ten of them down is the reason itself",
    ),
    "stale_after": Setting(
        what="age at which a held slice is taken away by the monitor",
        unit="duration",
        low="1s",
        high="1d",
        default="3m",
        why="three timeouts: a holder that lives has ended the attempt long before",
    ),
    "scan_every": Setting(
        what="how often the monitor looks at every ledger",
        unit="duration",
        low="100ms",
        high="1h",
        default="5s",
        settable_at="default",
        why="a second net under the ack wait; ledgers are watched, so a scan reads memory only",
    ),
    "reoffer": Setting(
        what="how long after an offer a slice that nobody took is offered again",
        unit="duration",
        low="1s",
        high="1h",
        default="30s",
        why="offers are lost only with the queue itself; repeats are refused by the queue and cost little",
    ),
    "claim_retries": Setting(
        what="how often a move is decided anew after another node changed the ledger first",
        unit="count",
        low=0,
        high=100,
        default=10,
        why="a lost race is settled in milliseconds; ten in a row say that something is wrong",
    ),
    "concurrency": Setting(
        what="slices that one node reads at once from one platform",
        unit="count",
        low=1,
        high=256,
        default=8,
        settable_at="platform",
        why="hides the platform's latency; the rates below are what protects it",
    ),
    "rate": Setting(
        what="requests a second to one source, over the whole cluster",
        unit="requests/s",
        low=0.001,
        high=100_000,
        default=10,
        why="what common platforms grant one shop; their own limits come with the adapter",
    ),
    "platform_rate": Setting(
        what="requests a second to one platform, over the whole cluster; 0 sets no limit",
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
    "throttle_wait": Setting(
        what="pause of a source that was throttled without being told for how long",
        unit="duration",
        low="100ms",
        high="1h",
        default="10s",
        why="longer than the one-second buckets that most platforms count in",
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
        what="orders a second that may enter, over the whole cluster; 0 sets no limit",
        unit="orders/s",
        low=0,
        high=1_000_000,
        default=0,
        why="the back end's own pace is seen by its backlog; a fixed one is for those who know it",
    ),
    "sink_backlog": Setting(
        what="orders waiting for the sink at which fetching stops",
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
        why="later than any retry in good order, earlier than a merchant's call",
    ),
    "pin": Setting(
        what="label (or name) of the nodes that alone may read this; empty: all",
        unit="label",
        default="",
        why="platforms that allow listed addresses only, or data that must stay in a place",
    ),
    "webhook": Setting(
        what="where an administrator is told of holes: env:NAME, file:/path or a URL; empty: nowhere",
        unit="reference",
        default="",
        why="the log and the events always tell it",
    ),
}
