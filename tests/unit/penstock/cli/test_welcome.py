"""What a person reads when a node is ready."""

from pathlib import Path

from actors.runtime.membership import Status
from penstock.cli.shown.welcome import welcome
from penstock.node.config import Config


def test_a_person_reads_what_the_node_serves_where_and_what_to_try() -> None:
    config = Config(
        nats="nats://n1:4222", sink="sqlite:///x/o.db", app="shop", http="127.0.0.1:7070", metrics="127.0.0.1:9464"
    )
    told = welcome(config, "n1", Status(topics=("mails", "schedule-targets"), tasks=("register",)))
    assert told == (
        "The node n1 is ready.\n"
        "  Server   nats://n1:4222, namespace penstock\n"
        f"  Orders   sqlite:{Path('x/o.db').absolute()}\n"
        "  HTTP     http://127.0.0.1:7070/schema lists the calls\n"
        "  Figures  http://127.0.0.1:9464/metrics\n"
        "  App      shop: topics mails; tasks register\n"
        "  Try      penstock jobs add mails '{\"to\": 7}' --nats nats://n1:4222\n"
        "  Stop     Ctrl-C; work in hand ends first. --log-level info shows what happens"
    )


def test_it_names_what_an_app_lacks_and_no_gateway_where_there_is_none(tmp_path: Path) -> None:
    nothing = welcome(
        Config(nats="nats://n1:4222", sink="none", app="shop", http="off"), "n1", Status(topics=("schedule-targets",))
    )
    assert "App      shop: neither a handler nor a task" in nothing
    assert "HTTP" not in nothing
    assert "Orders" not in nothing
    tasks = welcome(Config(nats="nats://n1:4222", roles=("executor",)), "n1", Status(tasks=("a", "b")))
    assert "Try      penstock batch submit FILE --task a" in tasks
    assert "HTTP" not in tasks
