"""What a page of another site can have a browser send, to a gateway on the same machine that asks for no token: images,
links and forms. None of it has an effect."""

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientSession

from penstock.api.operations import OPERATIONS
from tests.integration.api.test_rest import add, call

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")
ELSEWHERE: tuple[Mapping[str, str], ...] = (
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


async def ready(client: ClientSession, topic: str) -> int:
    found = await call(client, "GET", f"/v1/topics/{topic}")
    return int(found["ready"])


async def problem(client: ClientSession, method: str, path: str, status: int, **more: Any) -> dict[str, Any]:
    async with client.request(method, path, **more) as response:
        assert response.status == status, await response.text()
        told: dict[str, Any] = {**await response.json(content_type=None), "allow": response.headers.get("Allow", "")}
        return told


async def test_an_image_reserves_nothing(client: ClientSession, topic: str) -> None:
    await add(client, topic, {"id": "1"})
    told = await problem(client, "GET", f"/v1/topics/{topic}/reservations?most=10", 405)
    assert (told["code"], told["hint"], told["allow"]) == ("method", "use POST", "POST")
    assert await ready(client, topic) == 1


def test_no_operation_that_a_browser_sends_by_itself_has_an_effect() -> None:
    """An image, a link, a frame: GET, and HEAD. What they need a token for is to read."""
    assert {one.verb for one in OPERATIONS if one.method == "GET"} == {"read", None}
    assert {one.name for one in OPERATIONS if one.method == "GET" and one.verb is None} == {"health", "ready"}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("path", ["/v1/topics/TOPIC/reserve", "/v1/topics/TOPIC/reservations?most=1"])
async def test_a_form_without_fields_reserves_nothing(client: ClientSession, topic: str, kind: str, path: str) -> None:
    """A form has one of three content types, also when it is empty; a page cannot have none."""
    await add(client, topic, {"id": "1"})
    await problem(client, "POST", path.replace("TOPIC", topic), 415, data=b"", headers={"Content-Type": kind})
    assert await ready(client, topic) == 1


@pytest.mark.parametrize("headers", ELSEWHERE)
@pytest.mark.parametrize("path", ["/v1/topics/TOPIC/reserve", "/v1/topics/TOPIC/reservations?most=1", "/queue"])
async def test_a_page_of_another_site_reserves_nothing(
    client: ClientSession, topic: str, headers: Mapping[str, str], path: str
) -> None:
    await add(client, topic, {"id": "1"})
    body = b'{"command": "pop", "topic": "%b"}' % topic.encode() if path == "/queue" else b""
    for kind in ("", *FORMS):
        await problem(
            client, "POST", path.replace("TOPIC", topic), 403, data=body, headers={**headers, "Content-Type": kind}
        )
    assert await ready(client, topic) == 1


async def test_a_page_of_our_own_and_a_typed_address_are_answered(client: ClientSession, topic: str) -> None:
    for site in ("same-origin", "none"):
        for method, path in (("GET", f"/v1/topics/{topic}"), ("POST", f"/v1/topics/{topic}/reserve")):
            async with client.request(method, path, headers={"Sec-Fetch-Site": site}) as response:
                assert response.status == 200, await response.text()
    async with client.get("/schema", headers={"Sec-Fetch-Site": "cross-site"}) as response:
        assert response.status == 200, "a link from elsewhere: it tells nothing, and changes nothing"
