"""Adapters are found by name or made from a table."""

import pytest

from platforms.adapter import Account, Refreshing
from platforms.bounds import Window
from platforms.errors import BadDeclaration
from platforms.registry import adapter_named, adapter_names, make_adapter
from tests.unit.platforms.declared_example import table


def test_every_adapter_that_comes_along_can_be_loaded_and_bears_its_name() -> None:
    assert {"mall", "mall_token", "mall_link", "plain"} <= set(adapter_names())
    for name in adapter_names():
        assert adapter_named(name).declaration.name == name


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadDeclaration, match=r"no adapter 'mall-link' \(did you mean 'mall_link'\?\)"):
        make_adapter("mall-link")


def test_an_adapter_may_be_given_as_a_table() -> None:
    assert make_adapter(table()).declaration.name == "example"


def test_an_adapter_is_made_once() -> None:
    assert adapter_named("plain") is make_adapter("plain")


def test_a_window_of_woocommerce_is_never_asked_for_at_an_address_that_a_cache_knows() -> None:
    values = {"base_url": "https://tea.example", "consumer_key": "k", "consumer_secret": "s"}
    woo, account = adapter_named("woocommerce"), Account("s1", values)
    asked = [woo.request(Window(0, 60_000), None, account, now_ms) for now_ms in (3_600_000, 3_601_000)]
    assert asked[0].params != asked[1].params


def test_the_mall_can_log_in_again_and_a_file_cannot() -> None:
    assert isinstance(adapter_named("mall"), Refreshing)
    assert not isinstance(adapter_named("plain"), Refreshing)
