"""When a server that starts or stops is given up, and what is said of how far it is."""

from streams.embedded.work import LEAST_BYTES, LEAST_CPU_S, Patience, ServerWork, restored_in

NOTHING = ServerWork(0.0, 0, 0)
LOG = """[8348] 2026/11/25 04:53:55.045684 [INF]   Starting restore for stream '$G > KV_PENSTOCK_SETTINGS'
[8348] 2026/11/25 04:53:55.046648 [INF]   Starting restore for stream '$G > PENSTOCK_JOBS'
[8348] 2026/11/25 04:53:55.047246 [INF]   Restored 3,000 messages for stream '$G > KV_PENSTOCK_SETTINGS' in 1ms
"""


def test_a_server_that_does_nothing_is_given_up_after_its_time() -> None:
    patience = Patience(NOTHING, 0.0, still_s=30)
    little = ServerWork(LEAST_CPU_S / 2, LEAST_BYTES // 2, 0)
    assert [patience.is_over(little, now_s) for now_s in (10.0, 30.0, 30.1)] == [False, False, True]


def test_each_kind_of_work_gives_it_another_while() -> None:
    for work in (ServerWork(LEAST_CPU_S, 0, 0), ServerWork(0.0, LEAST_BYTES, 0), ServerWork(0.0, 0, 1)):
        patience = Patience(NOTHING, 0.0, still_s=30)
        assert [patience.is_over(work, now_s) for now_s in (29.0, 59.0, 59.1)] == [False, False, True]


def test_little_work_adds_up() -> None:
    patience = Patience(NOTHING, 0.0, still_s=30)
    assert not any(patience.is_over(ServerWork(now_s / 25, 0, 0), now_s) for now_s in range(300))


def test_where_nobody_tells_what_it_does_it_is_never_given_up() -> None:
    patience = Patience(ServerWork(None, 0, 0), 0.0, still_s=30)
    assert not patience.is_over(ServerWork(None, 0, 0), 1e6)


def test_the_log_tells_how_far_a_start_is() -> None:
    assert restored_in(LOG, 22) == "1 of 22 streams, 3,000 messages; it reads PENSTOCK_JOBS"
    assert restored_in("", 22) == "0 of 22 streams, 0 messages"
