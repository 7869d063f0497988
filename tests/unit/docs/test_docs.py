"""What the docs name exists: pages, tests, files, settings, subjects, streams, events, commands and their options."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec
import pytest
import typer.main

from actors.batch.rules.record import MomentName
from actors.fetch.rules.setting_table import SETTINGS
from penstock.admin.settings_page import settings_page
from penstock.cli.root import Commands, app, command_named
from penstock.node.config import Config
from platforms import declared_file
from platforms.signing import Recipe
from streams.messages.fetch import FetchEvent
from streams.subjects import Namespace
from streams.topology.specs import hub, wanted
from tests.support.docs import DOCS, ROOT, Page, commands, pages

PAGES = pages()
TOPOLOGY = wanted(Namespace())
BUCKETS = {bucket.name for topology in (TOPOLOGY, hub(Namespace())) for bucket in topology.buckets}
STREAMS = {stream.name for stream in TOPOLOGY.streams} | {f"KV_{name}" for name in BUCKETS}
EVENTS = {str(event.__struct_config__.tag) for event in FetchEvent.__args__}
MOMENTS = {*get_args(MomentName), "callback_given_up"}
ROWS = {
    f"{part}-{number:02}"
    for part, last in (("FETCH", 50), ("DELAY", 54), ("BATCH", 58), ("FLOW", 49), ("ZONE", 38))
    for number in range(1, last + 1)
}
"""The fetch, the delay, the batch, the flow and the zone part of the plan."""
BAD_INPUTS = {*range(1, 121)}
"""Of the catalogue: what callers send, what a task's code, a platform, a sheet and a callback may be."""
FORMS = {"slices": (4,), "orders": (2, 3), "dead": (3,)}
"""How many tokens follow the first one of a subject (streams/subjects.py)."""

each_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def page_named(name: str) -> Page:
    return next(page for page in PAGES if page.name == name)


def everything(page: Page) -> str:
    return page.text


# ---- links, files, tests


@each_page
def test_every_link_leads_somewhere(page: Page) -> None:
    for link in page.links:
        parts = urlsplit(link)
        assert not parts.scheme, f"{link}: pages speak of this project alone"
        target = (page.path.parent / parts.path).resolve() if parts.path else page.path
        assert target.exists(), link
        if parts.fragment:
            assert parts.fragment in Page(target, target.read_text(encoding="utf-8")).anchors, link


@each_page
def test_every_named_test_exists(page: Page) -> None:
    for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", everything(page)):
        file = ROOT / path
        assert file.is_file(), path
        if name:
            assert f"def {name}(" in file.read_text(encoding="utf-8"), f"{path}::{name}"


@each_page
def test_every_named_file_exists(page: Page) -> None:
    for span in page.spans:
        if re.fullmatch(r"(?:actors|streams|platforms|penstock|nats|tests|docs|bench|examples)/[\w./-]*", span):
            assert (ROOT / span).exists(), span


def test_every_page_of_decisions_is_in_the_architecture_by_its_title() -> None:
    listed = re.findall(r"^- \[(.*)\]\(adr/(0.*)\)$", everything(page_named("docs/architecture.md")), re.M)
    titles = [(path.read_text().partition("\n")[0].removeprefix("# "), path.name) for path in (DOCS / "adr").iterdir()]
    assert sorted(listed) == sorted(titles)


@each_page
def test_nothing_is_left_for_later(page: Page) -> None:
    assert not re.search(r"\b(?:TODO|FIXME|TBD|XXX)\b", everything(page))


# ---- settings, events, what was asked for


def test_the_settings_page_is_the_table() -> None:
    assert page_named("docs/settings.md").text == settings_page(), "run `just docs`"


def test_every_setting_is_on_the_settings_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", page_named("docs/settings.md").text, re.M)
    assert rows == list(SETTINGS)


def test_every_event_says_what_to_do() -> None:
    table = page_named("docs/operations.md").text
    named = {name for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M) for name in re.findall(r"\w+", row)}
    assert named >= EVENTS


def test_every_row_of_the_plan_is_shown_by_something() -> None:
    rows = dict(
        re.findall(
            r"^\| ((?:FETCH|DELAY|BATCH|FLOW|ZONE)-\d\d) \| [^|]+ \| (.+) \|$",
            page_named("docs/guarantees.md").text,
            re.M,
        )
    )
    assert set(rows) == ROWS
    for row, shown in rows.items():
        assert re.search(r"::test_|tests/|\]\(|promise \d|`penstock ", shown), f"{row}: {shown}"
        assert "tests/" in shown or "bench" in shown or not row.startswith(("BATCH", "FLOW", "ZONE")), (
            f"{row} names no test"
        )


def numbers_of(text: str) -> set[int]:
    """Return the numbers of `7`, `51, 52`, `1 to 15`."""
    ends = [[int(end) for end in part.split(" to ")] for part in text.split(", ")]
    return {number for first, *last in ends for number in range(first, (last or [first])[0] + 1)}


def test_every_bad_input_has_its_test() -> None:
    text = page_named("docs/guarantees.md").text.partition("## Bad inputs")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([\d, to]+) \| .+ \| (.+) \|$", text, re.M))
    assert set().union(*map(numbers_of, rows)) == BAD_INPUTS
    for numbers, shown in rows.items():
        assert "tests/" in shown, numbers


def test_every_key_of_an_adapter_file_is_explained() -> None:
    text = page_named("docs/howto/adapter.md").text
    structs = [
        each for each in vars(declared_file).values() if isinstance(each, type) and each.__name__.endswith("Part")
    ]
    fields = [field for each in (*structs, declared_file.AdapterFile, Recipe) for field in msgspec.structs.fields(each)]
    missing = [field.encode_name for field in fields if not re.search(rf"[`\[]{field.encode_name}[`\]]", text)]
    assert len(fields) > 50
    assert not missing


# ---- names on the broker


@each_page
def test_every_stream_and_bucket_exists(page: Page) -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "nats").rglob("*.conf"))
    own = {name for text in [texts, everything(page)] for name in re.findall(r"env:(PENSTOCK_\w+)", text)}
    variables = {f"PENSTOCK_{field.upper()}" for field in Config.__struct_fields__} | {"PENSTOCK_TRACE"} | own
    for name in re.findall(r"\b(?:KV_)?PENSTOCK_[A-Z_]*[A-Z]", everything(page)):
        assert name in STREAMS | BUCKETS | variables or f"${name}" in texts, name


def subjects(page: Page) -> Iterator[str]:
    for text in [*page.spans, *(line for block in page.blocks for line in block.text.splitlines())]:
        yield from re.findall(r"(?<![\w./$-])(?:penstock\.)?((?:slices|orders|dead|events)\.[<>\w.*…-]+)", text)


@each_page
def test_every_subject_has_the_form_of_its_stream(page: Page) -> None:
    for subject in subjects(page):
        first, *rest = subject.rstrip(".").split(".")
        if (first == "orders" and rest == ["db"]) or rest in ([">"], ["py"], ["toml"]):
            continue
        if first != "events":
            assert len(rest) in FORMS[first], subject
            continue
        assert rest[0] in ("fetch", "batch", "<engine>", "…", ">"), subject
        known = MOMENTS if rest[0] == "batch" else EVENTS
        assert len(rest) < 2 or rest[1] in known | {"<event>", "<moment>", "…", ">"}, subject


# ---- commands


def typed(page: Page) -> Iterator[list[str]]:
    """Yield the words behind `penstock` of each command that a page shows, in blocks and in its text."""
    lines = [line for block in page.blocks if block.language == "sh" for line in commands(block)]
    lines += [span for span in page.spans if span.startswith("penstock ")]
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and words[0].rpartition("/")[2] == "penstock":
            yield words[1:]


def fault_of(words: list[str]) -> str:
    """Return what is wrong with a command's name or options; its arguments may be stand-ins."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words[0].rstrip(",")
        if name not in command.commands:
            return f"there is no command {words[0]}"
        found = command_named(name) if isinstance(command, Commands) else command.commands[name]
        command, words = found, words[1:]
    options = {"--help"} | {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and not re.match(r"-\d", word)]
    return next(
        (f"{command.name} has no option {each}" for each in unknown if each.partition("=")[0] not in options), ""
    )


@each_page
def test_every_command_and_option_exists(page: Page) -> None:
    for words in typed(page):
        assert not fault_of(words), f"penstock {shlex.join(words)}: {fault_of(words)}"


def test_a_command_that_does_not_exist_is_found() -> None:
    assert fault_of(["sources", "ad"]) == "there is no command ad"
    assert fault_of(["verify", "a/b", "-1d", "now", "--audits"]) == "verify has no option --audits"
    assert not fault_of(["sources", "backfill", "a/b", "-2h", "-1h", "--name", "x"])


def test_the_docs_show_commands() -> None:
    assert sum(1 for page in PAGES for _ in typed(page)) > 60
