"""The few lines that drive beanstalkd do what they say, where it is installed."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from bench._beanstalk import Beanstalk, Worker, beanstalkd, find_beanstalkd
from streams.clock import monotonic_s

pytestmark = pytest.mark.skipif(find_beanstalkd() is None, reason="no beanstalkd in PATH")


@pytest.fixture
def port() -> Iterator[int]:
    with beanstalkd() as opened:
        yield opened


@pytest.fixture
def client(port: int) -> Iterator[Beanstalk]:
    with closing(Beanstalk(port)) as opened:
        yield opened


def test_what_is_put_is_reserved_in_order_and_gone_when_deleted(client: Beanstalk) -> None:
    client.put_many([b"a", b"b\r\nb", b""])
    first_id, first = client.reserve()
    rest = client.reserve_many(5)
    assert [first, *(body for _, body in rest)] == [b"a", b"b\r\nb", b""]
    assert client.count() == 3
    client.delete_many([first_id, *(job_id for job_id, _ in rest)])
    assert client.count() == 0
    assert client.reserve_many(2) == []


def test_an_answer_that_was_not_expected_is_told(client: Beanstalk) -> None:
    with pytest.raises(RuntimeError, match="NOT_FOUND"):
        client.delete(12345)


def test_workers_tell_what_they_did(port: int, client: Beanstalk) -> None:
    drain, listen = Worker("drain", port), Worker("listen", port, 2)
    client.put_many([b"x"] * 10)
    drain.go()
    assert drain.told() == [10]
    listen.go()
    client.put(f"{monotonic_s():.7f} x".encode())
    client.put(f"{monotonic_s() + 1:.7f} x".encode(), delay_s=1)
    waited_ms = listen.told()
    assert len(waited_ms) == 2
    assert min(waited_ms) > -1
    assert client.count() == 0
