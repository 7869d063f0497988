"""One request of an adapter file, compiled: path, parameters, headers, a body, and the credentials in it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, urlencode

from platforms.adapter import Request
from platforms.bodies import JsonTemplate
from platforms.declared_file import AuthPart, FieldValue, RequestPart
from platforms.errors import BadDeclaration
from platforms.signing import Signer
from platforms.templates import KeyList, Template, Values

_SECRET_NAME = re.compile(
    r"(.*[-_])?(authorization|cookie|password|passwd|secret|session|api[-_]?key|access[-_]?key|token)", re.I
)
_PATH = re.compile(r"/[^?#\s]*")
_NOT_IN_PATH = frozenset({"page.token"})  # the first page has none, and a path needs all its parts

_KIND_OF = {
    "name": ("header", "sign"),
    "value": ("header",),
    "user": ("basic",),
    "password": ("basic",),
    "secret": ("sign",),
    "place": ("sign",),
    "recipe": ("sign",),
}
"""Which kinds of credentials have a key."""

Pairs = list[tuple[str, str]]


class CompiledRequest:
    """A request that is filled in with values. `where` is its table in the file."""

    def __init__(self, where: str, part: RequestPart, auth: AuthPart, known: frozenset[str]) -> None:
        """BadDeclaration for what cannot be meant, with its place."""
        _check_kinds(where, part)
        self._part = part
        self._method = part.method or ("POST" if part.form or part.body or part.graphql else "GET")
        self._path = _path(f"{where}.path", part.path, known)
        self._params = _fields(f"{where}.params", part.params, known)
        self._form = _fields(f"{where}.form", part.form, known)
        self._headers = _fields(f"{where}.headers", part.headers, known)
        self._body = _body(where, part, known)
        named = [*part.params, *part.form]
        self._auth = _Auth("auth" if where == "request" else f"{where.rpartition('.')[0]}.auth", auth, named, known)
        if auth.kind == "sign" and auth.place == "form" and self._body is not None:
            raise BadDeclaration("auth.place", "the request has a JSON body and no form; use 'params' or 'headers'")

    @property
    def templates(self) -> list[Template]:
        """Every text with placeholders."""
        fields = [*self._params.values(), *self._form.values(), *self._headers.values()]
        bodies = [] if self._body is None else self._body.templates
        below = [each for field in fields for each in _templates_of(field)]
        return [self._path, *below, *bodies, *self._auth.templates]

    @property
    def names(self) -> set[str]:
        """The placeholders of the request itself, without those of the credentials."""
        own = set(map(id, self._auth.templates))
        return {name for template in self.templates if id(template) not in own for name in template.names}

    def make(self, base_url: str, values: Values, *, url: str | None = None) -> Request:
        """Return the request. A `url` (a next link) stands for the whole address, parameters included."""
        path = self._path_text(values)
        params = [] if url is not None else _render(self._params, values)
        form = _render(self._form, values)
        headers = [("accept", "application/json"), *_render(self._headers, values)]
        body = b"" if self._body is None else self._body.render(values).encode()
        self._auth.apply(path, params, form, headers, body, values)
        if form:
            headers.append(("content-type", "application/x-www-form-urlencoded"))
            body = urlencode(form, quote_via=quote_plus).encode()
        elif body:
            headers.append(("content-type", "application/json"))
        return Request(self._method, url or base_url + path, tuple(params), tuple(headers), body)

    def _path_text(self, values: Values) -> str:
        quoted: dict[str, str | int | KeyList | None] = {}
        for name in self._path.names:
            value = values[name]
            if value is None or str(value) in ("", ".", ".."):
                raise BadDeclaration("request.path", f"{{{name}}} has no value that can stand in a path")
            quoted[name] = quote(str(value), safe="")
        return self._path.render(quoted) or ""


class _Auth:
    """Puts credentials into a request."""

    def __init__(self, where: str, part: AuthPart, param_names: list[str], known: frozenset[str]) -> None:
        self._part = part
        for name, kind in _KIND_OF.items():
            if getattr(part, name) != getattr(AuthPart(), name) and part.kind not in kind:
                raise BadDeclaration(f"{where}.{name}", f"goes with kind {kind[0]!r}, and not with {part.kind!r}")
        texts = {"value": part.value, "user": part.user, "password": part.password, "secret": part.secret}
        needed: dict[str, tuple[str, ...]] = {
            "none": (),
            "header": ("name", "value"),
            "basic": ("user",),
            "sign": ("name", "secret"),
        }
        for name in needed[part.kind]:
            if not (texts | {"name": part.name})[name]:
                raise BadDeclaration(f"{where}.{name}", f"is needed for kind {part.kind!r}")
        wanted = {"none": (), "header": ("value",), "basic": ("user", "password"), "sign": ("secret",)}[part.kind]
        self._templates = {name: Template(f"{where}.{name}", texts[name], known) for name in wanted}
        for name, template in self._templates.items():
            if texts[name]:  # some platforms take the key as the user, and no password
                refuse_literal(f"{where}.{name}", template)
        self._signer = Signer(f"{where}.recipe", part.recipe, param_names) if part.kind == "sign" else None

    @property
    def templates(self) -> list[Template]:
        return list(self._templates.values())

    def apply(self, path: str, params: Pairs, form: Pairs, headers: Pairs, body: bytes, values: Values) -> None:
        said = {name: template.render(values) or "" for name, template in self._templates.items()}
        part = self._part
        if part.kind == "header":
            headers.append((part.name, said["value"]))
        elif part.kind == "basic":
            pair = f"{said['user']}:{said['password']}".encode()
            headers.append(("authorization", f"Basic {base64.b64encode(pair).decode()}"))
        elif self._signer is not None:
            signature = self._signer.sign(said["secret"], path, [*params, *form], body)
            {"params": params, "form": form, "headers": headers}[part.place].append((part.name, signature))


def refuse_literal(where: str, template: Template) -> None:
    """Raise BadDeclaration if a value that must be secret stands in the file itself."""
    if not template.names:
        raise BadDeclaration(where, "looks like a secret written into the file; use {account.<name>}")


def _check_kinds(where: str, part: RequestPart) -> None:
    given = [name for name in ("form", "body", "graphql") if getattr(part, name)]
    if len(given) > 1:
        raise BadDeclaration(f"{where}.{given[1]}", f"a request has one body, and there is {where}.{given[0]} already")
    if given and part.method == "GET":
        raise BadDeclaration(f"{where}.{given[0]}", "is sent with POST only")


def _path(where: str, text: str, known: frozenset[str]) -> Template:
    template = Template(where, text, known)
    if not _PATH.fullmatch(text):
        raise BadDeclaration(where, f"{text!r} is no path such as '/orders'; parameters have a table")
    if cannot := _NOT_IN_PATH.intersection(template.names):
        raise BadDeclaration(where, f"{{{min(cannot)}}} has no value for the first page; use a parameter")
    return template


def _body(where: str, part: RequestPart, known: frozenset[str]) -> JsonTemplate | None:
    if part.graphql is not None:
        query = part.graphql.query.replace("{", "{{").replace("}", "}}")
        whole = {"query": query, "variables": part.graphql.variables}
        return JsonTemplate(f"{where}.graphql", whole, known, _check_secret)
    return JsonTemplate(f"{where}.body", part.body, known, _check_secret) if part.body else None


Compiled = Template | JsonTemplate


def _fields(where: str, table: Mapping[str, FieldValue], known: frozenset[str]) -> dict[str, Compiled]:
    made: dict[str, Compiled] = {}
    for name, value in table.items():
        here = f"{where}.{name}"
        if isinstance(value, dict | list):
            made[name] = JsonTemplate(here, value, known, _check_secret)
            continue
        template = Template(here, str(value).lower() if isinstance(value, bool) else str(value), known)
        _check_secret(here, template)
        made[name] = template
    return made


def _check_secret(where: str, template: Template) -> None:
    if _SECRET_NAME.fullmatch(where.rpartition(".")[2]):
        refuse_literal(where, template)


def _templates_of(field: Compiled) -> list[Template]:
    return [field] if isinstance(field, Template) else field.templates


def _render(fields: Mapping[str, Compiled], values: Values) -> Pairs:
    return [(name, text) for name, field in fields.items() if (text := field.render(values)) is not None]
