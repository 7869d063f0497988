"""Each platform's file against the mall's own reading of that platform: names, signature, bounds, pages, errors."""

import msgspec
import pytest

from platforms.adapter import Account, Bug, Later, Login, Park, Refreshing, Response, SlowDown
from platforms.bounds import Window
from platforms.mall.dialects.dialect import Clerk, MallCall, MallRefusal
from platforms.mall.dialects.registry import DIALECTS
from platforms.registry import adapter_named, adapter_names
from tests.support.dialects import START_MS, TOKEN, StillShop, account_of, call_of, read_window, response_of, versions

PLATFORMS = sorted(set(DIALECTS) & set(adapter_names()))
WITHOUT_TOTAL = {"amazon", "shopee", "shopify"}
HISTORY = Window(START_MS - 7_200_000, START_MS + 2_000)
SIGNED = sorted({"douyin", "jd", "lazada", "pinduoduo", "shopee", "taobao"} & set(PLATFORMS))

platforms = pytest.mark.parametrize("platform", PLATFORMS)


@platforms
def test_every_order_is_read_in_its_last_state(platform: str) -> None:
    shop = StillShop(platform)
    rows, result = read_window(shop, HISTORY)
    assert versions(rows) == shop.last()
    assert (result.bad, result.missing, result.strays) == ((), 0, 0)
    assert result.is_proven or platform in WITHOUT_TOTAL


@platforms
def test_windows_that_meet_at_odd_moments_leave_nothing_out(platform: str) -> None:
    shop, rows = StillShop(platform), []
    for start in range(HISTORY.start_ms, HISTORY.end_ms, 777_777):
        rows += read_window(shop, Window(start, min(start + 777_777, HISTORY.end_ms)))[0]
    assert versions(rows) == shop.last()


@platforms
def test_a_group_of_one_second_that_is_larger_than_a_page_is_read_whole(platform: str) -> None:
    shop = StillShop(platform, crowd=260, crowds=1, orders=400)
    rows, result = read_window(shop, HISTORY)
    assert versions(rows) == shop.last()
    assert result.missing == 0


@pytest.mark.parametrize("platform", SIGNED)
def test_a_request_with_another_secret_is_refused(platform: str) -> None:
    shop, account = StillShop(platform), account_of(platform)
    secrets = {name: "another" for name in account.values if "secret" in name or name == "partner_key"}
    assert len(secrets) == 1
    wrong = Account("s1", {**account.values, **secrets})
    adapter = adapter_named(platform)
    response = shop.answer(adapter.request(HISTORY_HOUR, None, wrong, shop.now_ms))
    assert adapter.outcome(response) is not None
    assert b"sign" in response.body.lower()


HISTORY_HOUR = Window(START_MS - 3_600_000, START_MS - 2_400_000)


@platforms
def test_a_token_that_is_not_good_any_more_means_login(platform: str) -> None:
    shop, account = StillShop(platform), account_of(platform)
    tokens = {name: "old" for name in account.values if "token" in name or name in ("session", "consumer_secret")}
    adapter = adapter_named(platform)
    wrong = Account("s1", {**account.values, **tokens})
    response = shop.answer(adapter.request(HISTORY_HOUR, None, wrong, shop.now_ms))
    assert isinstance(adapter.outcome(response), Login), response


@platforms
def test_a_page_of_a_firewall_renews_no_login_and_parks_nothing(platform: str) -> None:
    adapter, page = adapter_named(platform), Response(403, {}, b"<!DOCTYPE html><title>Attention Required!</title>")
    assert isinstance(adapter.outcome(page), Later)
    if isinstance(adapter, Refreshing):
        assert isinstance(adapter.login_outcome(page), Later)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (403, "invalid_acceess_token", Login),
        (200, "common.error_auth", Login),
        (403, "", Login),
        (403, "error_permission", Park),
        (200, "common.error_shop", Park),
        (403, "error_sign", Park),
        (200, "error_param", Bug),
        (200, "common.error_inner", Later),
        (500, "error_busi", Later),
    ],
)
def test_the_error_of_shopee_says_what_its_status_does_not(status: int, error: str, kind: type) -> None:
    body = msgspec.json.encode({"error": error, "message": "as the platform says"})
    assert type(adapter_named("shopee").outcome(Response(status, {}, body))) is kind


@platforms
def test_a_login_brings_a_token_that_is_good(platform: str) -> None:
    shop, account, adapter = StillShop(platform), account_of(platform), adapter_named(platform)
    if not adapter.declaration.granted:
        pytest.skip("its token comes from a person")
    assert isinstance(adapter, Refreshing)
    granted = adapter.declaration.granted
    values = {name: value for name, value in account.values.items() if name not in granted}
    for _ in range(2):  # with the first refresh token, and with the one that the login brought
        response = shop.answer(adapter.refresh(Account("s1", values), shop.now_ms))
        assert adapter.login_outcome(response) is None
        values |= adapter.refreshed(response)
        assert {values[name] for name in granted} == {TOKEN}
    half = msgspec.structs.replace(response, body=response.body[: len(response.body) // 2])
    assert isinstance(adapter.login_outcome(half), Later)
    old: dict[str, str] = {name: "old" for name in ("refresh_token", "password") if name in values} or {
        "client_secret": "old"
    }
    refused = shop.answer(adapter.refresh(Account("s1", {**values, **old}), shop.now_ms))
    assert adapter.login_outcome(refused) is not None


@platforms
def test_a_caller_that_is_too_fast_is_told_to_wait(platform: str) -> None:
    outcome = adapter_named(platform).outcome(response_of(DIALECTS[platform].spoil(-1)))
    assert isinstance(outcome, SlowDown | Later)


@platforms
def test_what_the_platform_refuses_for_good_is_no_wait(platform: str) -> None:
    """A misspelt parameter or path, as the platform answers it."""
    shop = StillShop(platform)
    adapter = adapter_named(platform)
    made = call_of(adapter.request(HISTORY_HOUR, None, account_of(platform), shop.now_ms))
    wrong = msgspec.structs.replace(made, path=made.path + "x")
    with pytest.raises(MallRefusal) as refused:
        shop.dialect.answer(wrong, Clerk(shop.shop, shop.config, shop.now_ms, TOKEN))
    outcome = adapter.outcome(response_of(refused.value.answer))
    assert (
        isinstance(outcome, Bug | Later if platform == "pinduoduo" else Bug)
        or b"sign" in response_of(refused.value.answer).body.lower()
    )


def test_the_mall_reads_no_bound_in_two_filters_of_one_group_of_magento() -> None:
    """Filters of one group are or-ed there, so such a file would read the whole shop in each window."""
    shop = StillShop("magento")
    call = call_of(adapter_named("magento").request(HISTORY_HOUR, None, account_of("magento"), shop.now_ms))
    one_group = {name.replace("[1][filters][0]", "[0][filters][1]"): value for name, value in call.query.items()}
    wrong = MallCall("GET", call.path, one_group, call.headers, b"")
    answer = shop.dialect.answer(wrong, Clerk(shop.shop, shop.config, shop.now_ms, TOKEN))
    assert msgspec.json.decode(answer.body)["total_count"] == 400
