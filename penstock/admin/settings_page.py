"""The page of docs that lists every setting, made from the table itself: `python -m penstock.admin.settings_page`."""

import sys

from actors.fetch.rules.setting_table import SETTINGS, Setting

__all__ = ["settings_page"]

HEAD = """\
# Settings

<!-- Made by `just docs` from actors/fetch/rules/setting_table.py. A test compares the two. -->

These settings say how orders are fetched. There are three levels: `default`, a platform, a source. For each name the
narrower level wins. Penstock checks a change with every source below its level. The change is in force on all nodes
within a second, and it never moves an open slice.

```sh
penstock settings list teashop/s1
penstock settings set teashop slice=2m retries=3
penstock settings set teashop/s1 --unset retries
```

Durations are text with a unit: `250ms`, `60s`, `5m`, `1h30m`, `1d`. *Level* is the narrowest level at which you may set
it. The configuration of a process (its server, folder, roles) is separate: see `penstock config`.

| setting | default | range | level | what it is | why that default |
| --- | --- | --- | --- | --- | --- |
"""


def settings_page() -> str:
    """Return the page as Markdown, ending with a line end."""
    return HEAD + "".join(_row(name, setting) for name, setting in SETTINGS.items())


def _row(name: str, setting: Setting) -> str:
    cells = (f"`{name}`", _default(setting), _range(setting), setting.settable_at, setting.what, setting.why)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(setting: Setting) -> str:
    if isinstance(setting.default, tuple):
        return ", ".join(f"`{each}`" for each in setting.default)
    return f"`{setting.default}`" if setting.default != "" else "empty"


def _range(setting: Setting) -> str:
    """Return the range with its unit, where the numbers do not carry one themselves."""
    several = ", rising" if setting.unit == "durations" else ""
    if setting.choices:
        words = ", ".join(f"`{choice}`" for choice in setting.choices)
        return f"{words}, or {setting.low} to {setting.high}{several}" if setting.high else words
    if not setting.high:
        return {
            "start": "a span back, or a moment",
            "label": "a label or a name",
            "bound": "a zone, or shard:NAME",
            "path": "names with dots, as address.country",
        }.get(setting.unit, "a reference or URL")
    unit = f" {setting.unit}" if setting.unit in ("requests/s", "orders/s") else ""
    return f"{setting.low} to {setting.high}{unit}"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
