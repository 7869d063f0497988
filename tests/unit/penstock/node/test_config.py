"""A process's configuration: from weak to strong, and every mistake named with its place."""

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.node.config import Config, load_config, node_name, origin_of


def write(folder: Path, text: str) -> Path:
    file = folder / "penstock.toml"
    file.write_text(text)
    return file


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, 'zone = "file"\nname = "file"\nnamespace = "file"\n')
    environment = {"PENSTOCK_NAME": "variable", "PENSTOCK_NAMESPACE": "variable"}
    config = load_config(file, environment, {"namespace": "flag", "drain_s": None})
    assert (config.zone, config.name, config.namespace, config.drain_s) == ("file", "variable", "flag", 20.0)
    assert origin_of(file, environment, {"namespace": "flag"}) == {
        "zone": str(file),
        "name": "the environment",
        "namespace": "the command line",
    }


def test_text_stands_for_numbers_and_lists_in_variables() -> None:
    config = load_config(None, {"PENSTOCK_DRAIN_S": "2.5", "PENSTOCK_REPLICAS": "3", "PENSTOCK_ROLES": "sink, fetcher"})
    assert (config.drain_s, config.replicas, config.roles) == (2.5, 3, ("sink", "fetcher"))


def test_a_length_of_time_has_its_unit_at_every_door(tmp_path: Path) -> None:
    file = write(tmp_path, 'connect_s = "1m30s"\n')
    config = load_config(file, {"PENSTOCK_ZONE_LEASE_S": "20s"}, {"drain_s": "500ms"})
    assert (config.connect_s, config.zone_lease_s, config.drain_s) == (90, 20, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('zoen = "eu"', "no such key: 'zoen'; did you mean 'zone'?"),
        ("drain_s = true", "drain_s: Expected `float`, got `bool`"),
        ('drain_s = "5"', None),
        ("drain_s = -1", "drain_s: Expected `float` >= 0.0"),
        ("replicas = 1000000000", "replicas: Expected `int` <= 5"),
        ('roles = ["fetch"]', "roles: 'fetch' is no role; did you mean 'fetcher'?"),
        ('log_level = "warn"', "log_level: 'warn' is not known; did you mean 'warning'?"),
        ('password = "hunter2"', "password: looks like a secret; write env:NAME"),
        ('nkey_seed = "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"', "nkey_seed: looks like a secret"),
        ('zone = "Zürich"', "zone: 'Zürich' does not fit; use 1 to 64 of A-Z a-z 0-9 _ -"),
        ("zone = ", "not TOML"),
        ("[zone]\nname = 1", "zone: Expected `str`, got `object`"),
    ],
)
def test_mistakes_in_the_file_are_named_with_their_place(tmp_path: Path, text: str, said: str | None) -> None:
    file = write(tmp_path, text)
    if said is None:
        assert load_config(file, {}).drain_s == 5
        return
    with pytest.raises(UsageError) as refused:
        load_config(file, {})
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "SUAIB" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        load_config(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PENSTOCK_ROLE", "sink", "did you mean PENSTOCK_ROLES?"),
        ("PENSTOCK_DRAIN_S", "20 s", "PENSTOCK_DRAIN_S: '20 s' is not a duration; write a number with its unit"),
        ("PENSTOCK_DRAIN_S", "2h", "PENSTOCK_DRAIN_S: Expected `float` <= 3600.0"),
        ("PENSTOCK_PORT", "tcp://10.0.0.1:4222", "PENSTOCK_PORT: Expected `int`, got `str`: 'tcp://10.0.0.1:4222'"),
        ("PENSTOCK_PROFILE", "quick", "PENSTOCK_PROFILE: 'quick' is not known; there are safe, fast"),
        ("PENSTOCK_NATS", "file:///etc/passwd", "is no server's address"),
        ("PENSTOCK_NATS", "nats://joe:hunter2@host", "no user or password in the address"),
        ("PENSTOCK_NATS", "nats://host:99999", "the port is no number"),
        ("PENSTOCK_NATS", "nats://host,http://joe:hunter2@other", "is no server's address"),
        ("PENSTOCK_MONITOR", "file:///etc/passwd", "is no monitoring address"),
        ("PENSTOCK_CALLBACK_HOSTS", "shop.example.com", "callback_hosts: calls are signed; set callback_secret too"),
        ("PENSTOCK_CALLBACK_HOSTS", "a.example,https://b.example/", "callback_hosts: 'https://b.example/': no network"),
        ("PENSTOCK_CALLBACK_HOSTS", "a.example:0", "callback_hosts: 'a.example:0': write HOST"),
        ("PENSTOCK_CALLBACK_SECRET", "hunter2hunter2hunter2", "callback_secret: write env:NAME or file:/path"),
        ("PENSTOCK_MAIL_TO", "ops", "mail_to: 'ops' is no mail address"),
        ("PENSTOCK_MAIL_TO", "Ops <ops@example.com>", "write name@example.com, and no name beside it"),
        ("PENSTOCK_MAIL_TO", "ops@example.com", "mail_to: nothing is mailed without smtp"),
        ("PENSTOCK_SMTP", "smtp.example.com", "smtp: 'smtp.example.com' is no address; write HOST:PORT"),
        ("PENSTOCK_SMTP", "smtp.example.com:587", "smtp: nothing is mailed without mail_to"),
        ("PENSTOCK_SMTP_USER", "me", "smtp_user: a login has a name and a password"),
        ("PENSTOCK_SMTP_PASSWORD", "hunter2", "smtp_password: write env:NAME or file:/path"),
        ("PENSTOCK_HTTP", "7070", "http: '7070' is no address; write HOST:PORT"),
        ("PENSTOCK_HTTP", "joe@host:7070", "is no address"),
        ("PENSTOCK_HTTP", "127.0.0.1:70700", "is no address"),
        ("PENSTOCK_HTTP", "[::]:7070", "tokens would travel unencrypted; set http_cert and http_key, or behind_proxy"),
        ("PENSTOCK_HTTP_KEY", "/etc/key.pem", "http_cert, http_key: one without the other"),
        ("PENSTOCK_TOKEN", "hunter2", "token: write env:NAME or file:/path"),
        ("PENSTOCK_NAMESPACE", "Penstock", "PENSTOCK_NAMESPACE: 'Penstock' does not fit; use 1 to 32 of a-z 0-9 _ -"),
    ],
)
def test_mistakes_in_variables_are_named_and_secrets_are_not(variable: str, value: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_config(None, {variable: value})
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_somebody_elses_variables_are_left_alone() -> None:
    assert load_config(None, {"PENSTOCK_SHOP_ONE_KEY": "abc", "PATH": "/bin", "PENSTOCK_CRASH_AT": "cut"}) == Config()


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'zone'"):
        load_config(None, {}, {"zonee": "x"})


def test_a_reference_is_resolved_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, {"PENSTOCK_PASSWORD": "env:BROKER_PASSWORD"})
    monkeypatch.setenv("BROKER_PASSWORD", "hunter2")
    assert config.secret("password") == "hunter2"
    assert config.secret("token") == ""
    monkeypatch.delenv("BROKER_PASSWORD")
    with pytest.raises(UsageError, match="password: env:BROKER_PASSWORD: the variable is not set"):
        config.secret("password")


def test_what_is_shown_has_references_and_no_secrets() -> None:
    shown = Config(password="env:BROKER_PASSWORD", roles=("sink",)).shown()
    assert shown["password"] == "env:BROKER_PASSWORD"
    assert shown["roles"] == ("sink",)
    assert set(shown) == set(Config.__struct_fields__)


def test_a_node_without_a_name_gets_one_of_its_own() -> None:
    assert node_name(Config(name="n1"), host="h", process_id=1, chance="a") == "n1"
    assert node_name(Config(), host="Büro-PC.local", process_id=7, chance="a1") == "B-ro-PC-7-a1"
    assert node_name(Config(), host="日本", process_id=7, chance="a1") == "node-7-a1"
    assert len(node_name(Config(), host="x" * 300, process_id=2**22, chance="a1b2")) <= 64


def test_the_data_folder_follows_the_variable_or_the_system(tmp_path: Path) -> None:
    assert load_config(None, {"PENSTOCK_DATA": str(tmp_path)}).data_folder() == tmp_path
    assert Config().data_folder().name == "penstock"


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, ("127.0.0.1", 7070)),
        ({"http": "[::1]:80"}, ("::1", 80)),
        ({"http": "localhost:0"}, ("localhost", 0)),
        ({"http": "0.0.0.0:443", "http_cert": "/c.pem", "http_key": "/k.pem"}, ("0.0.0.0", 443)),
        ({"http": "0.0.0.0:80", "behind_proxy": True}, ("0.0.0.0", 80)),
        ({"http": "off"}, None),
        ({"http": ""}, None),
    ],
)
def test_http_is_on_this_machine_unless_the_way_to_it_is_encrypted(
    values: dict[str, object], address: tuple[str, int] | None
) -> None:
    assert load_config(None, {}, values).http_address() == address


def test_roles_default_to_all() -> None:
    assert Config().has_role("sink")
    assert Config(roles=("sink",)).has_role("sink")
    assert not Config(roles=("sink",)).has_role("fetcher")
    assert Config(roles=("sink",)).has_role("")
