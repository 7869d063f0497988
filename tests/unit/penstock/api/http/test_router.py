"""The router finds what a plain comparison of all paths finds."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api.http.router import Routes
from penstock.api.operations import OPERATIONS

ROUTES = Routes[str]()
for one in OPERATIONS:
    ROUTES.add(one.method, one.path, one.name)

part = st.sampled_from(["v1", "topics", "jobs", "batches", "reserve", "items", "kick", "health", "%2F", "*", "{topic}"])
fits = st.sampled_from(OPERATIONS).flatmap(
    lambda one: st.lists(part | st.text("ab%.*", min_size=1), min_size=3, max_size=3).map(
        lambda parts: re.sub(r"\{\w+\}", lambda _: parts.pop(), one.path)
    )
)
any_path = st.lists(part, max_size=6).map(lambda parts: "/" + "/".join(parts))


@given(fits | any_path, st.sampled_from(["", "/"]))
@example("/v1/topics/*", "")
@example("/v1/topics//jobs", "")
def test_what_stands_at_a_path_is_found_by_each_method(path: str, end: str) -> None:
    wanted: dict[str, tuple[str, list[str]]] = {}
    for one in OPERATIONS:
        pattern = re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(one.path))
        if (found := re.fullmatch(pattern, path)) is not None:
            wanted[one.method] = one.name, list(found.groups())
    methods, parts = ROUTES.find(path + end)
    assert {method: (name, parts) for method, name in methods.items()} == wanted


def test_a_fixed_part_comes_before_braces() -> None:
    routes = Routes[str]()
    routes.add("GET", "/a/{name}", "any")
    routes.add("GET", "/a/own", "own")
    assert routes.find("/a/own") == ({"GET": "own"}, [])
    assert routes.find("/a/other") == ({"GET": "any"}, ["other"])
