"""One level of settings as a document: a flat JSON object, read strictly.

People write such documents by hand (`nats kv put`). So everything that JSON readers usually accept is refused with a
reason: a repeated name, NaN, a byte order mark, bytes that are not UTF-8, endless numbers and nesting.
"""

import json
from typing import NoReturn

from actors.runtime.rules.setting_values import BadSetting

MAX_LEVEL_BYTES = 65_536
"""A level has some forty short values. A longer document is not one."""

MAX_DIGITS = 30


def read_document(text: bytes) -> dict[str, object]:
    """Return the object's values as JSON has them. Raises BadSetting, for the whole document, for anything else."""
    do = 'write one flat JSON object such as {"slice": "60s", "retries": 3}'
    if len(text) > MAX_LEVEL_BYTES:
        raise BadSetting("", None, f"take {len(text)} bytes, more than {MAX_LEVEL_BYTES}", do)
    if text.startswith(b"\xef\xbb\xbf"):
        raise BadSetting("", None, "begin with a byte order mark", "save the text as UTF-8 without one")
    try:
        values = json.loads(
            text.decode(), object_pairs_hook=_once_each, parse_constant=_no_constant, parse_int=_short_int
        )
    except UnicodeDecodeError as error:
        raise BadSetting("", None, f"are not UTF-8 at byte {error.start}", "save the text as UTF-8") from error
    except RecursionError as error:
        raise BadSetting("", None, "are nested too deeply", do) from error
    except BadSetting:
        raise
    except ValueError as error:
        raise BadSetting("", None, f"are not JSON: {str(error)[:100]}", do) from error
    if not isinstance(values, dict):
        raise BadSetting("", None, "are not a JSON object", do)
    return values


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise BadSetting(name[:64], value, "stands there twice", "leave one of them out")
        values[name] = value
    return values


def _no_constant(word: str) -> NoReturn:
    raise BadSetting("", None, f"hold {word}, which is not JSON", "write a finite number")


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise BadSetting("", None, f"hold a number of {len(digits)} digits", "write a number within its range")
    return int(digits)
