"""The catalogue's bad inputs to an HTTP API, rows 37 to 69, each by its number; those that need raw bytes (42 to 45,
61, 62, 66) are in test_limits.py. After each the gateway answers, its link to the server stands, and its log holds no
secret."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession
from yarl import URL

from tests.support.gateway import SharedGateway

TEN_YEARS_MS = 10 * 366 * 86_400_000
RECEIPT = "TOPIC.k.1.1.000000000000"


class Row(NamedTuple):
    """A request, and what it is answered: the status, and the problem's (or the item's) code and field."""

    status: int
    code: str
    what: str = ""
    method: str = "POST"
    path: str = "/v1/topics/TOPIC/jobs"
    body: Any = None
    raw: bytes | None = None
    headers: Mapping[str, str] = {}
    token: str | None = None


FORM = {"Content-Type": "application/x-www-form-urlencoded"}
UTF_16 = {"Content-Type": "application/json; charset=utf-16"}
FORGED = {"Nats-Rollup": "all", "Nats-Schedule": "@every 1s", "Nats-TTL": "1s"}
FINISH = "/v1/receipts/finish"


def job(**fields: object) -> dict[str, object]:
    return {"id": "1", **fields}


ROWS: dict[str, Row] = {
    "27 truncated JSON": Row(400, "malformed", "body", raw=b'{"id": "1"'),
    "28 500 levels": Row(422, "bad", "body", raw=b'{"body": ' + b"[" * 500 + b"]" * 500 + b"}"),
    "28 50,000 levels": Row(400, "malformed", "body", raw=b'{"body": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "29 NaN": Row(400, "malformed", "body", raw=b'{"body": NaN}'),
    "29 Infinity": Row(400, "malformed", "body", raw=b'{"delay_ms": Infinity}'),
    "29 1e400": Row(422, "bad", "body", raw=b'{"body": 1e400}'),
    "30 beyond 64 bits": Row(422, "bad", "delay_ms", raw=b'{"delay_ms": 99999999999999999999999}'),
    "32 lone surrogate": Row(400, "malformed", "body", raw=b'{"body": "\\ud800"}'),
    "32 no UTF-8": Row(400, "malformed", "body", raw=b'{"body": "\xff\xfe"}'),
    "32 no UTF-8 in an id": Row(400, "malformed", "body", raw=b'{"id": "\xff"}'),
    "33 BOM": Row(400, "malformed", "body", raw=b"\xef\xbb\xbf{}"),
    "25 nothing": Row(400, "malformed", "body", raw=b""),
    "37 no token": Row(401, "unauthorized", token=""),
    "38 another token of the same length": Row(401, "unauthorized", token="pst_0123456789_" + "a" * 43),
    "39 two in one header": Row(401, "unauthorized", token="a, Bearer b"),
    "40 in the query": Row(400, "malformed", path="/v1/topics/TOPIC/jobs?token=x"),
    "41 with a line end, escaped": Row(401, "unauthorized", token="pst_0123456789_" + "a" * 43 + "%0a"),
    "46 a form": Row(415, "media_type", "Content-Type", raw=b"id=1", headers=FORM),
    "46 text": Row(415, "media_type", "Content-Type", raw=b"{}", headers={"Content-Type": "text/plain"}),
    "46 none": Row(415, "media_type", "Content-Type", raw=b"{}", headers={"Content-Type": ""}),
    "46 another encoding": Row(415, "media_type", raw=b"{}", headers=UTF_16),
    "47 delay -1": Row(422, "bad", "delay_ms", body=job(delay_ms=-1)),
    "48 delay 1e18": Row(422, "bad", "delay_ms", body=job(delay_ms=10**18)),
    "48 delay 1e18 as a float": Row(422, "bad", "delay_ms", raw=b'{"delay_ms": 1e18}'),
    "48 delay as text": Row(422, "bad", "delay_ms", body=job(delay_ms="30")),
    "48 delay true": Row(422, "bad", "delay_ms", body=job(delay_ms=True)),
    "48 delay 1.5": Row(422, "bad", "delay_ms", body=job(delay_ms=1.5)),
    "48 delay and due": Row(422, "bad", "due_ms", body=job(delay_ms=5, due_ms=5)),
    "48 due in 10,000 years": Row(422, "bad", "due_ms", body=job(due_ms=253_402_300_799_999)),
    "49 ttr 0": Row(422, "bad", "ttr_ms", body=job(ttr_ms=0)),
    "50 ttr 10 years": Row(422, "bad", "ttr_ms", body=job(ttr_ms=TEN_YEARS_MS)),
    "53 id of 256": Row(422, "bad", "id", body=job(id="x" * 256)),
    "53 an empty id is none": Row(201, "", body=job(id="")),
    "53 id with a line end": Row(422, "bad", "id", body=job(id="a\nb")),
    "12 id with NUL": Row(422, "bad", "id", body=job(id="a\x00b")),
    "11 id from right to left": Row(422, "bad", "id", body=job(id="a\u202eb")),
    "15 id of dots is an id": Row(201, "", body=job(id="../x/%2e")),
    "53 id . is an id": Row(201, "", body=job(id=".")),
    "1 topic with a space": Row(422, "bad", "topic", path="/v1/topics/a%20b/jobs", body={}),
    "4 topic of two tokens": Row(422, "bad", "topic", path="/v1/topics/a.b/jobs", body={}),
    "7 topic *": Row(422, "bad", "topic", path="/v1/topics/*/jobs", body={}),
    "8 topic >": Row(422, "bad", "topic", path="/v1/topics/%3E/jobs", body={}),
    "13 topic $JS.API": Row(422, "bad", "topic", path="/v1/topics/$JS.API.>/jobs", body={}),
    "9 topic of 65": Row(422, "bad", "topic", path=f"/v1/topics/{'x' * 65}/jobs", body={}),
    "10 topic of 3,000": Row(422, "bad", "topic", path=f"/v1/topics/{'x' * 3000}/jobs", body={}),
    "32 topic no UTF-8": Row(400, "malformed", "topic", path="/v1/topics/%ff/jobs", body={}),
    "77 unknown field": Row(422, "bad", "", body=job(dealy_ms=5)),
    "22 forged headers": Row(201, "", body=job(), headers=FORGED),
    "24 a body of 256 KiB and one": Row(413, "too_large", "body", body=job(body="x" * (262_144 - 1))),
    "55, 56 a receipt that holds nothing": Row(200, "stale", path=FINISH, body={"receipts": [RECEIPT]}),
    "56 a receipt that is none": Row(200, "bad", path=FINISH, body={"receipts": ["x"]}),
    "56 a receipt with wildcards": Row(200, "bad", path=FINISH, body={"receipts": ["*.>.1.1.000000000000"]}),
    "56 an empty receipt": Row(422, "bad", "receipts[0]", path=FINISH, body={"receipts": [""]}),
    "56 no receipts": Row(422, "bad", "receipts", path=FINISH, body={"receipts": []}),
    "56 1,001 receipts": Row(422, "bad", "receipts", path=FINISH, body={"receipts": [RECEIPT] * 1001}),
    "58 pop for 1e9": Row(422, "bad", "wait_ms", path="/v1/topics/TOPIC/reserve", body={"wait_ms": 10**9}),
    "58 most 1e9": Row(422, "bad", "most", path="/v1/topics/TOPIC/reserve", body={"most": 10**9}),
    "60 delete what is not there": Row(404, "not_found", "id", "DELETE", "/v1/topics/TOPIC/jobs/never"),
    "60 delete in a topic that is not there": Row(404, "not_found", "id", "DELETE", "/v1/topics/nothing/jobs/never"),
    "62 an id with escapes is decoded once": Row(404, "not_found", "id", "GET", "/v1/topics/TOPIC/jobs/%252f"),
    "62 no such path": Row(404, "not_found", "", "GET", "/v1/nothing"),
    "61 another method": Row(405, "method", "", "PATCH", "/v1/topics/TOPIC/jobs", body={}),
    "67 limit 1e9": Row(422, "bad", "limit", "GET", "/v1/topics/TOPIC/jobs?limit=1000000000"),
    "67 limit 0": Row(422, "bad", "limit", "GET", "/v1/topics/TOPIC/jobs?limit=0"),
    "67 limit as text": Row(422, "bad", "limit", "GET", "/v1/topics/TOPIC/jobs?limit=many"),
    "67 limit twice": Row(422, "bad", "limit", "GET", "/v1/topics/TOPIC/jobs?limit=1&limit=2"),
    "67 unknown parameter": Row(422, "bad", "page", "GET", "/v1/topics/TOPIC/jobs?page=2"),
    "67 a state that is none": Row(422, "bad", "state", "GET", "/v1/topics/TOPIC/jobs?state=lost"),
    "67 not pairs": Row(400, "malformed", "query", "GET", "/v1/topics/TOPIC/jobs?%%%"),
    "68 a cursor that was tampered with": Row(422, "bad", "after", "GET", "/v1/topics/TOPIC/jobs?after=zzzz"),
    "69 1,001 jobs": Row(422, "bad", "body", body=[{}] * 1001),
    "69 no jobs": Row(422, "bad", "body", body=[]),
    "73 a rate below nothing": Row(422, "bad", "rate", "PATCH", "/v1/topics/TOPIC", body={"rate": -1}),
    "75 a TTR without a unit": Row(422, "bad", "ttr", "PATCH", "/v1/topics/TOPIC", body={"ttr": "5"}),
    "83 a rate of 1e300": Row(422, "bad", "rate", "PATCH", "/v1/topics/TOPIC", body={"rate": 1e300}),
    "5 the settings of all topics": Row(403, "forbidden", "", "PATCH", "/v1/topics/default", body={"attempts": 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def token(guarded_gateway: SharedGateway) -> str:
    """A token that may do everything, so that nothing is refused for want of one."""
    return guarded_gateway.token(
        f"all{secrets.token_hex(4)}", verbs=("add", "reserve", "settle", "delete", "read", "admin")
    )


@pytest.mark.parametrize("name", ROWS)
async def test_bad_input(
    guarded_gateway: SharedGateway, token: str, topic: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = ROWS[name]
    data = row.raw if row.raw is not None else None if row.body is None else json.dumps(row.body).encode()
    own = {"Authorization": f"Bearer {token if row.token is None else row.token}", "Content-Type": "application/json"}
    headers = {key: value for key, value in {**own, **row.headers}.items() if value not in ("", "Bearer ")}
    skipped = ["Content-Type"] if "Content-Type" not in headers else []
    url = URL(guarded_gateway.url + row.path.replace("TOPIC", topic), encoded=True)
    async with ClientSession(skip_auto_headers=skipped) as client:
        async with client.request(row.method, url, data=data, headers=headers) as response:
            told = await response.json(content_type=None)
            assert (response.status, _code(told)) == (row.status, row.code), told
            if row.status >= 400:
                assert response.content_type == "application/problem+json"
                assert told["title"]
                assert row.what in ("", told.get("what")), told
        async with client.get(f"{guarded_gateway.url}/ready") as response:
            assert response.status == 200
    assert token not in caplog.text
    assert "gateway.failed" not in caplog.text


def _code(told: dict[str, Any]) -> str:
    """Return the code of a problem, or of a list's only item."""
    (item,) = told.get("answers", (told,))
    code: str = item.get("code", "")
    return code


async def test_rows_51_52_57_an_id_or_a_receipt_again(guarded_gateway: SharedGateway, token: str, topic: str) -> None:
    async with ClientSession(guarded_gateway.url, headers={"Authorization": f"Bearer {token}"}) as client:

        async def post(path: str, body: object) -> tuple[int, dict[str, Any]]:
            async with client.post(path, json=body) as response:
                return response.status, await response.json(content_type=None)

        jobs = f"/v1/topics/{topic}/jobs"
        first = await post(jobs, job(body="a"))
        again = await post(jobs, job(body="a"))
        assert again == (200, {**first[1], "is_new": False}), "the same body: the same answer"
        assert (await post(jobs, job(body="b")))[0] == 409
        _, told = await post(f"/v1/topics/{topic}/reserve", {"wait_ms": 10_000})
        receipts = {"receipts": [told["jobs"][0]["receipt"]]}
        assert await post("/v1/receipts/finish", receipts) == await post("/v1/receipts/finish", receipts)
