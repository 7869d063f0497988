"""How the server's times are read."""

import pytest

from streams.errors import MalformedMessage
from streams.server_clock import server_time_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("2026-11-21T13:37:19.653156251Z", 1795268239.653156),
        ("2026-11-21T15:37:19.653156251+02:00", 1795268239.653156),
    ],
)
def test_a_servers_time_is_read_to_the_microsecond(text: str, seconds: float) -> None:
    assert server_time_s(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("text", [None, "", "now", "2026-11-21", "2026-11-21T13:37:19", 5])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(MalformedMessage, match="server's time"):
        server_time_s(text)
