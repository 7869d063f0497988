"""Properties of the rule by which a client leaves a server that is cut off."""

from hypothesis import given
from hypothesis import strategies as st

from streams.link.contact import LEAVE_S, NOBODY_S, Contact

ANSWERS = st.lists(st.tuples(st.booleans(), st.floats(0.1, 2 * LEAVE_S)), max_size=40)


@given(ANSWERS)
def test_it_leaves_what_was_alone_for_long_without_a_gap(answers: list[tuple[bool, float]]) -> None:
    contact, now_s, alone_since_s, last_s = Contact(), 0.0, None, 0.0
    for is_alone, after_s in answers:
        now_s += after_s
        if not is_alone:
            alone_since_s = None
        elif alone_since_s is None or now_s - last_s >= LEAVE_S:
            alone_since_s = now_s
        last_s = now_s
        leaves = alone_since_s is not None and now_s - alone_since_s >= LEAVE_S
        if is_alone:
            assert contact.alone(now_s) == leaves
        else:
            contact.answered()
        if leaves:
            alone_since_s = None


def test_an_election_is_no_reason() -> None:
    contact = Contact()
    assert not any(contact.alone(now_s) for now_s in (0.0, 2.0, 4.0, 6.0, 8.0))
    contact.answered()
    assert not contact.alone(10.5)


def test_where_nobody_answers_at_any_server_it_leaves_more_and_more_seldom() -> None:
    contact = Contact(most_s=NOBODY_S)
    left = [at_s for at_s in range(3_600) if contact.alone(float(at_s))]
    assert left[:6] == [10, 31, 72, 153, 314, 615], "each server is given twice as long as the one before"
    assert len(left) == 15, "then one in five minutes"
    contact.answered()
    left = [at_s for at_s in range(4_000, 4_100) if contact.alone(float(at_s))]
    assert left == [4_010, 4_031, 4_072], "a node answered: the next silence is a new one"
