"""The server files in nats/: valid, complete in their variables, and without a secret."""

from pathlib import Path

import pytest
from anyio import fail_after

from streams.embedded.server import embedded_server
from streams.errors import StreamError
from streams.link.connection import connect
from streams.link.credentials import Credentials
from tests.support.accounts import Users
from tests.support.processes import NATS, check_config, include_line, quoted
from tests.support.tls import make_certificates


def test_no_secret_stands_in_a_file() -> None:
    for path in sorted(NATS.rglob("*")):
        assert path.suffix in ("", ".conf"), "server configuration only"
        if path.is_file():
            assert not [line for line in path.read_text().splitlines() if "password" in line or "nkey: U" in line]


@pytest.mark.parametrize(
    "name",
    [
        "dev.conf",
        "cluster/server.conf",
        "cluster/secured.conf",
        "zones/hub.conf",
        "zones/hub_cluster.conf",
        "zones/zone.conf",
        "zones/hub_secured.conf",
        "zones/zone_secured.conf",
    ],
)
def test_each_file_is_valid_with_its_variables_and_says_which_is_missing(tmp_path: Path, name: str) -> None:
    environment = {
        **Users().environment(),
        "PENSTOCK_SERVER_NAME": quoted("n1"),
        "PENSTOCK_LISTEN": quoted("127.0.0.1:4222"),
        "PENSTOCK_CLUSTER_LISTEN": quoted("127.0.0.1:6222"),
        "PENSTOCK_ROUTES": quoted(["nats://127.0.0.1:6222"]),
        "PENSTOCK_STORE": quoted(str(tmp_path)),
        "PENSTOCK_DOMAIN": quoted("east"),
        "PENSTOCK_HUBS": quoted(["nats://127.0.0.1:7422"]),
        "PENSTOCK_LEAF_LISTEN": quoted("127.0.0.1:7422"),
        "PENSTOCK_LEAF_SEED": quoted(Users().credentials("zone").nkey_seed),
    }
    if name.endswith("secured.conf"):
        said = check_config(NATS / name, environment)
        assert "PENSTOCK_TLS_CERT" in said
    else:
        assert check_config(NATS / name, environment).startswith("0 ")
    environment.pop("PENSTOCK_STORE")
    said = check_config(NATS / name, environment)
    assert said.startswith("1 ")
    assert "PENSTOCK_STORE" in said


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_link_is_encrypted_and_the_server_has_to_prove_itself(
    certificates: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in certificates.items():
        monkeypatch.setenv(name, quoted(path))
    with fail_after(20):
        async with embedded_server(tmp_path, config=include_line("tls.conf", tmp_path)) as server:
            trusting = Credentials(tls_ca=certificates["PENSTOCK_TLS_CA"])
            async with connect(f"tls://127.0.0.1:{server.port}", name="test", credentials=trusting) as connection:
                assert (await connection.api("INFO"))["streams"] == 0
            with pytest.raises(StreamError):
                async with connect(f"tls://127.0.0.1:{server.port}", name="test", connect_timeout_s=0.4):
                    pytest.fail("trusted an unknown authority")
