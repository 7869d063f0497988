"""What people write for settings, on the command line and in a seed file."""

import tomllib

import pytest

from actors.fetch.settings.desk import read_seed, value_of
from actors.fetch.settings.levels import DEFAULT, LevelName, UnknownLevel
from actors.runtime.rules.setting_values import BadSetting, nearest


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("slice", "2m", "2m"),
        ("retries", "3", 3),
        ("retries", "-1", -1),
        ("rate", "0.5", 0.5),
        ("rate", "many", "many"),
        ("again", "10m,2h", ["10m", "2h"]),
        ("again", '["10m", "2h"]', ["10m", "2h"]),
        ("again", "", []),
        ("again", "auto", "auto"),
        ("backoff", "linear", "linear"),
        ("pin", "007", "007"),
        ("start", "-30d", "-30d"),
    ],
)
def test_text_becomes_what_the_settings_unit_asks_for(name: str, text: str, value: object) -> None:
    assert value_of(name, text) == value


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadSetting, match=r"retrise.*did you mean retries"):
        value_of("retrise", "3")


SEED = """
[default]
retries = 9
start = 2026-01-31T08:00:00+08:00
again = ["10m", "2h"]

[platform.mall]
slice = "2m"

[source.mall.one]
rate = 0.5
webhook = "env:HOOK"
"""


def test_a_seed_has_three_kinds_of_tables() -> None:
    assert read_seed(tomllib.loads(SEED)) == {
        DEFAULT: {"retries": 9, "start": "2026-01-31T08:00:00+08:00", "again": ["10m", "2h"]},
        LevelName("mall"): {"slice": "2m"},
        LevelName("mall", "one"): {"rate": 0.5, "webhook": "env:HOOK"},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[defaults]\nretries = 1", "'defaults': a seed has the tables"),
        ("retries = 1", "'retries': a seed has"),
        ("default = 3", "'default': a seed has"),
        ("[source.mall]\nslice = '2m'", "'source.mall.slice': a seed has"),
        ("[default]\nwebhook = 'shpat_0123456789abcdef0123'", "looks like a secret"),
        ("[default]\npassword = 'hunter2'", "setting password.*looks like a secret"),
        ("[platform.'a b']\nretries = 1", "a b"),
        ("[source.default.one]\nretries = 1", "no platform can be called so"),
    ],
)
def test_a_seed_that_is_wrong_is_refused_and_no_secret_is_repeated(text: str, said: str) -> None:
    with pytest.raises((BadSetting, UnknownLevel), match=said) as refused:
        read_seed(tomllib.loads(text))
    assert "hunter2" not in str(refused.value)
    assert "shpat" not in str(refused.value)


def test_a_name_that_is_near_none_of_many_lists_only_the_first_few() -> None:
    known = [f"teashop/s{number:05}" for number in range(20_000)]
    told = nearest("zzz", known)
    assert told.startswith("there are teashop/s00000, teashop/s00001, ")
    assert told.endswith(" and 19960 others")
    assert len(told) < 1_000
