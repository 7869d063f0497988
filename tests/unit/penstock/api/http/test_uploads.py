"""What a file may be on its way in, and how it is named on its way out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http import uploads
from penstock.api.http.heads import check_head
from penstock.api.http.limits import LARGEST_BODY, LARGEST_UPLOAD
from penstock.api.http.problems import RefusedRequest
from penstock.api.http.uploads import Upload, charset_of, content_disposition, is_upload_path

CSV = (b"content-type", b"text/csv; charset=utf-8")
HOST = (b"host", b"x")
PATH = b"/v1/batches/register"


def head(*more: tuple[bytes, bytes], method: str = "POST", path: bytes = PATH) -> Any:
    return check_head(method, path, b"", [HOST, *more])


def test_a_file_has_a_limit_of_its_own() -> None:
    length = (b"content-length", b"%d" % LARGEST_UPLOAD)
    assert head(CSV, length).is_upload
    for refused in (
        [CSV, (b"content-length", b"%d" % (LARGEST_UPLOAD + 1))],
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % (LARGEST_BODY + 1))],
        [(b"content-type", b"image/png"), (b"content-length", b"%d" % (LARGEST_BODY + 1))],
    ):
        with pytest.raises(RefusedRequest, match="413"):
            head(*refused)


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", PATH), ("POST", PATH + b"/retry"), ("POST", b"/v1/batches/"), ("POST", b"/v1/topics/x")],
)
def test_a_file_is_taken_at_one_place(method: str, path: bytes) -> None:
    assert not is_upload_path(method, path)
    assert not head(CSV, method=method, path=path).is_upload


@pytest.mark.parametrize(
    ("media_type", "charset"),
    [
        ("text/csv", ""),
        ("text/csv; charset=shift_jis", "shift_jis"),
        ('Text/CSV;header=present;Charset="GBK" ; x=y', "GBK"),
        ("text/csv; charset=", ""),
        ("text/csv; x-charset=big5", ""),
        ("application/vnd.apache.parquet; charset=binary", ""),
    ],
)
def test_a_csv_may_say_its_encoding(media_type: str, charset: str) -> None:
    assert charset_of(media_type) == charset


def test_a_name_comes_as_percent_escapes() -> None:
    assert head(CSV, (b"x-file-name", b"pr%C3%BCfung%0A.csv")).file_name == "prüfung\n.csv"
    assert head(CSV, (b"x-file-name", "prüfung.csv".encode())).file_name == "prüfung.csv"  # as curl sends it
    assert head(CSV, (b"x-file-name", b"pr\xfcfung.csv")).file_name == "pr\ufffdfung.csv"


async def test_a_file_that_grows_beyond_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGEST_UPLOAD", 10)
    upload = Upload(said({"body": b"12345678", "more_body": True}, {"body": b"90", "more_body": True}, {}), -1, "")
    assert [part async for part in upload.parts()] == [b"12345678", b"90"]
    assert upload.is_read
    upload = Upload(said({"body": b"12345678", "more_body": True}, {"body": b"901"}), -1, "")
    with pytest.raises(RefusedRequest, match="413"):
        [part async for part in upload.parts()]
    assert not upload.is_read


async def test_a_file_that_breaks_off_is_refused() -> None:
    upload = Upload(said({"body": b"1", "more_body": True}, {"type": "http.disconnect"}), 5, "")
    with pytest.raises(RefusedRequest, match="too early") as told:
        [part async for part in upload.parts()]
    assert told.value.closes


def said(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", **left.pop(0)}

    return receive


@given(some.text(max_size=300))
def test_no_name_says_anything_but_a_name(name: str) -> None:
    value = content_disposition(name).decode("ascii")
    assert value.isprintable()
    assert value.startswith('attachment; filename="')
    assert value.count('"') == 2
    assert "/" not in value
    assert "\\" not in value
    assert len(value) < 3_000


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("id/result.xlsx", "result.xlsx"),
        ("../../etc/passwd", "passwd"),
        ("..", "result"),
        ('a"; filename="b.exe', "a__ filename__b.exe"),
        ("a\r\nSet-Cookie: x", "aSet-Cookie_ x"),
        ("überall.csv", "_berall.csv"),
    ],
)
def test_old_clients_get_a_plain_name(name: str, plain: str) -> None:
    assert f'filename="{plain}";' in content_disposition(name).decode()
