"""The encodings of text in an upload."""

ENCODINGS = {
    "utf-8": "utf-8-sig",
    "utf-16": "utf-16",
    "gb18030": "gb18030",
    "big5": "cp950",
    "shift-jis": "cp932",
    "euc-jp": "euc-jp",
    "euc-kr": "cp949",
    "koi8-r": "koi8-r",
    "iso-8859-2": "iso-8859-2",
    "iso-8859-15": "iso-8859-15",
    **{f"windows-{number}": f"cp{number}" for number in (874, *range(1250, 1259))},
}
"""Python's codec by the web's name of an encoding (https://encoding.spec.whatwg.org/#names-and-labels)."""
_LABELS = {
    "utf8": "utf-8",
    "us-ascii": "utf-8",
    "utf-16le": "utf-16",
    "gbk": "gb18030",
    "gb2312": "gb18030",
    "iso-8859-1": "windows-1252",
    "latin1": "windows-1252",
    "x-sjis": "shift-jis",
}
"""Names that other programs use. Latin-1 is what the web takes it for."""


def known_encoding(name: str) -> str | None:
    """Return the name of an encoding in small letters, or None if the name is unknown."""
    known = name.lower().replace("_", "-")
    known = _LABELS.get(known, known)
    return known if not known or known in ENCODINGS else None


def unknown_encoding(name: str) -> str:
    """Return the error text for an unknown name."""
    return f"encoding {name[:80]!a}: not one of {', '.join(ENCODINGS)}"
