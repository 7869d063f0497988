"""The count of what was asked for: right in sum, whichever request the server serves first."""

from hypothesis import given
from hypothesis import strategies as st

from streams.pull.inbox import PullInbox


@given(st.data())
def test_the_count_is_what_the_server_may_still_send(data: st.DataObject) -> None:
    """A server serves requests in any order, and ends each with its word on what is left over."""
    inbox, server = PullInbox("i."), dict[int, int]()
    for number in range(1, data.draw(st.integers(1, 30)) + 1):
        match data.draw(st.sampled_from(["ask", "deliver", "end", "end without a word"])):
            case "ask":
                count = data.draw(st.integers(1, 5))
                server[number] = count
                inbox.count_request(number, count)
            case "deliver" if server:
                served = data.draw(st.sampled_from(sorted(server)))
                inbox.count_delivery()
                server[served] -= 1
                if not server[served]:
                    del server[served]
            case "end" if server:
                ended = data.draw(st.sampled_from(sorted(server)))
                inbox.count_end(ended, server.pop(ended))
            case "end without a word" if server and server == inbox.open:
                inbox.count_end(ended := max(server), None)
                del server[ended]
        assert inbox.requested == sum(server.values()) == sum(inbox.open.values())
        assert 0 not in inbox.open.values()


def test_what_was_not_asked_for_is_not_counted() -> None:
    inbox = PullInbox("i.")
    inbox.count_delivery()
    inbox.count_end(7, 3)
    assert (inbox.requested, inbox.open) == (0, {})
