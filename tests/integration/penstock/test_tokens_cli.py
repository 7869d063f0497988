"""Tokens of the HTTP gateway by command: made, shown once, changed over, revoked."""

from penstock.api.http.tokens import list_tokens
from tests.support.cli import CommandLine


async def test_a_token_is_shown_once_and_listed_without_its_text(cli: CommandLine) -> None:
    options = ["--topic", "shop1-*", "--topic", "mail", "--verb", "add", "--rate", "50", "--expires", "90d"]
    made = await cli("tokens", "add", "shop", *options, "--json")
    document = made.ok().json()
    text = document["token"]
    assert (document["topics"], document["verbs"], document["rate"]) == (["shop1-*", "mail"], ["add"], 50)
    assert "shown once" in made.err
    assert "sha256" not in document
    listed = await cli("tokens", "list", "--json")
    [one] = listed.ok().json()
    assert (one["name"], one["is_live"], one["expires_ms"]) == ("shop", True, document["expires_ms"])
    assert text not in listed.out
    assert "live" in (await cli("tokens", "list")).ok().out
    [record] = await list_tokens(cli.records.session.bucket("TOKENS"))
    assert record.fits(text)


async def test_a_token_is_changed_over_and_the_first_revoked(cli: CommandLine) -> None:
    first = (await cli("tokens", "add", "shop", "--tenant", "t1", "--json")).ok().json()
    assert first["verbs"] == ["add", "reserve", "settle", "delete", "read"]
    second = (await cli("tokens", "rotate", "shop", "--json")).ok().json()
    assert (second["namespace"], second["id"] != first["id"]) == ("t1", True)
    third = await cli("tokens", "rotate", "shop")
    assert (third.code, "revoke the one" in third.err) == (2, True)
    unsure = await cli("tokens", "revoke", "shop", first["id"])
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    (await cli("tokens", "revoke", "shop", first["id"], "--yes")).ok()
    states = {one["id"]: one["is_live"] for one in (await cli("tokens", "list", "--json")).ok().json()}
    assert states == {first["id"]: False, second["id"]: True}
    [page] = (await cli("tokens", "list", "--limit", "1", "--json")).ok().json()
    [rest] = (await cli("tokens", "list", "--after", f"shop.{page['id']}", "--json")).ok().json()
    assert [page["id"], rest["id"]] == [first["id"], second["id"]]
    assert (await cli("tokens", "list", "--after", "shop.gone", "--json")).ok().json() == []
    (await cli("tokens", "revoke", "shop", "--yes")).ok()
    none = await cli("tokens", "revoke", "shop", "--yes")
    assert (none.code, "has no token" in none.err) == (2, True)


async def test_when_none_is_valid_any_more_the_commands_name_the_way_to_open_the_gateway(cli: CommandLine) -> None:
    (await cli("tokens", "add", "first", "--json")).ok()
    (await cli("tokens", "add", "second", "--json")).ok()
    one_left = (await cli("tokens", "revoke", "first", "--yes")).ok()
    assert "tokens add" not in one_left.err
    none_left = (await cli("tokens", "revoke", "second", "--yes")).ok()
    listed = (await cli("tokens", "list", "--json")).ok()
    for told in (none_left.err, listed.err):
        assert "penstock tokens add NAME" in told
        assert "penstock tokens forget NAME`, for each of first second" in told
    unsure = await cli("tokens", "forget", "first")
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    (await cli("tokens", "forget", "first", "--yes")).ok()
    assert "asks for none" in (await cli("tokens", "forget", "second", "--yes")).ok().out
    assert (await cli("tokens", "list", "--json")).ok().json() == []


async def test_what_makes_no_token_is_refused(cli: CommandLine) -> None:
    for arguments, said in (
        (["add", "a b"], "use 1 to 64"),
        (["add", "me", "--topic", "a*b"], "neither a topic nor a beginning"),
        (["add", "me", "--tenant", "Big"], "use up to 24"),
        (["add", "me", "--rate", "-1"], "requests a second"),
        (["add", "me", "--expires", "0s"], "is over already"),
        (["rotate", "nobody"], "create one"),
    ):
        refused = await cli("tokens", *arguments)
        assert (refused.code, said in refused.err) == (2, True), (arguments, refused.err)
