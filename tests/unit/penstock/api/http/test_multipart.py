"""A form's body in pieces of any size gives the same parts."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from penstock.api.http.multipart import LONGEST_PART_HEAD, BadForm, FormParts, PartHead, boundary_of

BOUNDARY = "--X"
DELIMITER = b"\r\n----X"


def body(parts: list[tuple[bytes, bytes]], end: bytes = b"--\r\n") -> bytes:
    made = b"".join(b"----X\r\n" + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts)
    return made + b"----X" + end


def parted(raw: bytes, cuts: list[int]) -> list[tuple[PartHead, bytes]]:
    reader, found = FormParts(BOUNDARY), list[tuple[PartHead, bytes]]()
    places = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    for start, end in pairwise(places):
        for each in reader.feed(raw[start:end]):
            if isinstance(each, PartHead):
                found.append((each, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + each)
    assert reader.is_whole
    return found


def field(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="' + name + b'"'


bits = some.sampled_from([b"", b"\r", b"\n", b"\r\n", b"--", b"----X", b"\r\n----", b"\r\n--", b"a", b"\x00\xff"])
datas = some.lists(bits, max_size=8).map(b"".join).filter(lambda data: DELIMITER not in b"\r\n" + data)


@given(some.lists(datas, max_size=4), some.lists(some.integers(0, 10_000), max_size=9))
@example([b""], [])
@example([b"\r\n"], [1, 2, 3])
def test_a_form_has_the_same_parts_wherever_its_pieces_end(found: list[bytes], cuts: list[int]) -> None:
    raw = body([(field(b"f%d" % at), data) for at, data in enumerate(found)])
    assert parted(raw, cuts) == [(PartHead(f"f{at}"), data) for at, data in enumerate(found)]
    assert parted(raw, list(range(len(raw)))) == parted(raw, [])


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b'content-disposition:form-data;name="a";filename="b.csv"', PartHead("a", "b.csv")),
        (field(b"a") + b'; filename="a%22b\\"c.csv"\r\nContent-Type: text/csv', PartHead("a", 'a"b"c.csv', "text/csv")),
        (field(b"a") + '; filename="表.csv"'.encode(), PartHead("a", "表.csv")),
        (field(b"a") + b"; filename=x.csv; filename*=UTF-8''%E8%A1%A8.csv", PartHead("a", "表.csv")),
        (field(b"a") + b'; filename=""', PartHead("a", "")),
    ],
)
def test_names_are_read_as_browsers_and_curl_write_them(head: bytes, told: PartHead) -> None:
    assert parted(body([(head, b"1")]), []) == [(told, b"1")]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"x" * (LONGEST_PART_HEAD + 9), "does not begin with its boundary"),
        (b"----Xrubbish\r\n", "behind a boundary"),
        (b"----X\r\nX-Other: 1\r\n\r\n", "has no name"),
        (b"----X\r\n" + b"a" * 5_000, "a head of more than"),
        (b"----X\r\n" + field(b"\xff") + b"\r\n\r\n", "not UTF-8"),
        (b"----X\r\n" + field(b"a") + b"\r\nContent-Transfer-Encoding: base64\r\n\r\n", "encoded for mail"),
    ],
)
def test_what_is_no_form_is_told(raw: bytes, why: str) -> None:
    with pytest.raises(BadForm, match=why):
        list(FormParts(BOUNDARY).feed(raw))


def test_a_form_that_ends_in_the_middle_is_not_whole() -> None:
    reader = FormParts(BOUNDARY)
    assert list(reader.feed(body([(field(b"a"), b"1")])[:-9])) == [PartHead("a")]
    assert not reader.is_whole


def test_the_boundary_is_that_of_the_content_type() -> None:
    assert boundary_of("multipart/form-data; boundary=----WebKitFormBoundary7MA4") == "----WebKitFormBoundary7MA4"
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == "a b"
    assert [
        boundary_of(each) for each in ("multipart/form-data", "text/csv; boundary=x", "multipart/form-data; boundary=")
    ] == [""] * 3
