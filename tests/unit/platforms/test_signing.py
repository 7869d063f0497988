"""Signatures, against the examples that the vendors' own documents give."""

from typing import Any

import pytest

from platforms.errors import BadDeclaration
from platforms.signing import Recipe, Signer

TOP = [
    ("method", "taobao.item.seller.get"),
    ("app_key", "12345678"),
    ("session", "test"),
    ("timestamp", "2016-01-01 12:00:00"),
    ("format", "json"),
    ("v", "2.0"),
    ("sign_method", "md5"),
    ("fields", "num_iid,title,nick,price,num"),
    ("num_iid", "11223344"),
]
LAZADA = [
    ("app_key", "123456"),
    ("access_token", "test"),
    ("timestamp", "1517820392000"),
    ("sign_method", "sha256"),
    ("order_id", "1234"),
]


def sign(recipe: Recipe, params: list[tuple[str, str]], path: str = "", body: bytes = b"") -> str:
    return Signer("auth.recipe", recipe, [name for name, _ in params]).sign("helloworld", path, params, body)


def test_the_example_of_the_taobao_open_platform() -> None:
    """Its document 101617, "how to sign"."""
    assert sign(Recipe(), TOP) == "66987CB115214E59E6EC978214934FB8"


def test_the_example_of_lazada() -> None:
    """Its document on signatures, order/get."""
    recipe = Recipe(pattern="{path}{sorted}", algorithm="hmac-sha256")
    assert sign(recipe, LAZADA, "/order/get") == "4190D32361CFB9581350222F345CB77F3B19F0E31D162316848A2C1FFD5FAB4A"


@pytest.mark.parametrize(
    ("algorithm", "signature"),
    [
        ("md5", "a84d3597bbb7aaeb0540d1022623165c"),
        ("hmac-sha256", "8a5350b8fdacaa753c0885ab9859d382a31de4add09c6943c1d34298bd2165f1"),
    ],
)
def test_the_examples_of_a_public_connector_for_douyin(algorithm: Any, signature: str) -> None:
    """The digests that its own tests expect, which come from the platform's rules."""
    params = [
        ("app_key", "appkey123"), ("method", "order.searchList"), ("param_json", '{"page":0,"size":100}'),
        ("timestamp", "1800000000"), ("v", "2"), ("sign_method", algorithm), ("access_token", "t"),
    ]  # fmt: skip
    recipe = Recipe(algorithm=algorithm, case="lower", leave_out=("sign", "sign_method", "access_token"))
    signer = Signer("auth.recipe", recipe, [name for name, _ in params])
    assert signer.sign("secret123", "", params) == signature


BY_HAND: dict[str, tuple[Recipe, list[tuple[str, str]], str]] = {
    "shopee": (
        Recipe(
            pattern="{param.partner_id}{path}{param.timestamp}{param.access_token}{param.shop_id}",
            algorithm="hmac-sha256",
            case="lower",
        ),
        [("partner_id", "1001"), ("timestamp", "1700000000"), ("access_token", "tok"), ("shop_id", "77")],
        "a43dbe64b585e388a9f0e117a46c11538aab6d1a138213c7de9807a57b3e287e",
    ),
    "pinduoduo": (
        Recipe(),
        [
            ("type", "pdd.order.number.list.increment.get"),
            ("access_token", "tok"),
            ("client_id", "1001"),
            ("data_type", "JSON"),
            ("start_updated_at", "1700000000"),
            ("end_updated_at", "1700001800"),
            ("page", "1"),
            ("timestamp", "1700002000"),
        ],
        "0AC6049369A9771AE70C820063848869",
    ),
    "jd": (
        Recipe(),
        [
            ("method", "jingdong.pop.order.search"),
            ("360buy_param_json", '{"end_date":"2023-11-15 06:43:20","page":"1"}'),
            ("access_token", "tok"),
            ("app_key", "1001"),
            ("timestamp", "2023-11-15 06:13:20"),
            ("v", "2.0"),
        ],
        "48BFAE9F4B2D1DAAE735D3686E80A449",
    ),
}
"""The texts to sign were put together by hand, and digested with openssl and md5sum."""


@pytest.mark.parametrize("platform", BY_HAND)
def test_digests_that_other_programs_made(platform: str) -> None:
    recipe, params, signature = BY_HAND[platform]
    assert sign(recipe, params, "/api/v2/order/get_order_list") == signature


def test_order_and_emptiness_of_parameters_change_nothing() -> None:
    assert sign(Recipe(), [("empty", ""), *reversed(TOP)]) == sign(Recipe(), TOP)
    assert sign(Recipe(skip_empty=False), [("empty", ""), *TOP]) != sign(Recipe(skip_empty=False), TOP)


def test_what_is_left_out_is_not_signed() -> None:
    recipe = Recipe(leave_out=("sign", "access_token"))
    assert sign(recipe, [*TOP, ("access_token", "x"), ("sign", "y")]) == sign(recipe, TOP)


def test_parameters_may_stand_in_the_pattern_by_name() -> None:
    """Shopee's form: no sorting, five values in a fixed order."""
    recipe = Recipe(pattern="{param.partner_id}{path}{param.timestamp}", algorithm="hmac-sha256", case="lower")
    signed = sign(recipe, [("timestamp", "1700000000"), ("partner_id", "42")], "/api/v2/order/get_order_list")
    same = sign(
        Recipe(pattern="{body}", algorithm="hmac-sha256", case="lower"),
        [],
        body=b"42/api/v2/order/get_order_list1700000000",
    )
    assert signed == same
    assert signed == signed.lower()


def test_pairs_may_be_joined_as_in_a_query() -> None:
    joined = sign(Recipe(pattern="{secret}{sorted}", pair="{k}={v}", join="&"), [("b", "2"), ("a", "1")])
    assert joined == sign(Recipe(pattern="{secret}{body}"), [], body=b"a=1&b=2")


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        ({"pattern": "{secret}{sortd}"}, r"unknown placeholder \{sortd\} \(did you mean 'sorted'\?\)"),
        ({"pattern": "{secret}{param.nonce}"}, r"unknown placeholder \{param.nonce\}"),
        ({"pattern": "{sorted}"}, "signs nothing secret"),
        ({"pattern": "{account.secret}{sorted}"}, "by way of parameters"),
        ({"pattern": "{secret}{sorted"}, "brace"),
        ({"pair": "{key}={v}"}, "unknown placeholder"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(recipe: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDeclaration, match=problem):
        Signer("auth.recipe", Recipe(**recipe), ["a"])
