"""Which hosts a callback may reach, and how it is signed. Pure.

A submitter chooses the URL of a callback, and the call comes from within the operator's network. So the operator lists
the hosts. Addresses that are not public are refused even if a listed name leads to them, unless the operator lists
their network.

An entry is a host name, `*.` and a name (its subdomains), `*` (any name), or an address. Each is for https on port 443,
or on the port that it names. A network (`10.0.0.0/8`) lets listed names lead into it, and each of its addresses be
called on port 443. Plain http is for listed loopback addresses only.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

PORT = 443
LONGEST_URL = 2_000
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*{_LABEL}")
_V6_GLOBAL = IPv6Network("2000::/3")
_6TO4 = IPv6Network("2002::/16")
"""No longer in use (RFC 7526). Whether it is global depends on the version of Python."""
_NAT64 = IPv6Network("64:ff9b::/96")
_LINKS = (_NAT64, IPv6Network("::/96"))
"""Networks whose addresses end with the version 4 address to which they lead."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Allowed(NamedTuple):
    """The operator's list. `hosts`: names, patterns and addresses, each with its port."""

    hosts: frozenset[tuple[str, int]] = frozenset()
    networks: tuple[Network, ...] = ()


def parse_allowed(entries: Iterable[str]) -> Allowed:
    """Return the list. Raises ValueError, naming the entry, for an invalid one."""
    hosts: set[tuple[str, int]] = set()
    networks: list[Network] = []
    for entry in entries:
        if "/" in entry:
            networks.append(_network(entry))
        else:
            hosts.add(_host(entry))
    return Allowed(frozenset(hosts), tuple(networks))


def refusal_of(scheme: str, host: str, port: int, allowed: Allowed) -> str:
    """Return why the host must not be called, with what to do. Empty if it may be. `host`: as in a parsed URL, in ASCII
    and without brackets."""
    address, plain = _address(host), host.lower()
    if scheme != "https" and not (scheme == "http" and address is not None and address.is_loopback):
        return f"{scheme} is not encrypted; use https"
    if not (_is_listed_address(address, port, allowed) if address else _is_listed_name(plain, port, allowed)):
        at = plain if port == PORT else f"{plain} on port {port}"
        return f"{at} is not among the hosts that may be called; have the operator add it to callback_hosts"
    return ""


def may_connect(address: str, allowed: Allowed) -> bool:
    """Return whether a connection may be made to an address of a listed name."""
    found = _address(address)
    return found is not None and (is_public(found) or _is_within(found, allowed.networks))


def is_public(address: Address) -> bool:
    """Return whether an address is public, and so are all that it stands for."""
    address = _plain(address)
    if isinstance(address, IPv6Address) and (address not in _V6_GLOBAL or address in _6TO4):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def signature(secret: str, body: bytes, at_s: int) -> str:
    """Return the header's value: the moment, and HMAC-SHA256 over moment, dot and body, in hex."""
    mac = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def tenant_secret(secret: str, tenant: str) -> str:
    """Return the key that signs calls for a tenant: HMAC-SHA256 over its name, in hex. Without a tenant it is the
    secret itself. So no tenant can sign calls to another."""
    return hmac.new(secret.encode(), tenant.encode(), hashlib.sha256).hexdigest() if tenant else secret


def task_secret(secret: str, task: str) -> str:
    """Return the key that signs requests to the external program of a task. No tenant has this key: no name of one has
    a colon."""
    return tenant_secret(secret, f"task:{task}")


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise ValueError(f"{entry[:80]!a}: no network: {error}; write one as 10.0.0.0/8") from None


def _host(entry: str) -> tuple[str, int]:
    """Return an entry's host and port. A version 6 address stands in brackets if it has a port."""
    host, colon, number = entry.rpartition(":") if re.search(r"(?:^[^:]*|\]):[^:]*$", entry) else (entry, "", "")
    port = int(number) if number.isascii() and number.isdecimal() and len(number) <= 5 else 0
    plain = host.lower().removeprefix("[").removesuffix("]")
    address, name = _address(plain), plain.removeprefix("*.")
    is_name = plain == "*" or (_NAME.fullmatch(name) is not None and not _is_number(name))
    if (address is None and not is_name) or (colon and not 1 <= port <= 65_535):
        raise ValueError(
            f"{entry[:80]!a}: write HOST, *.HOST, *, an address or a network; HOST:PORT for a port other than {PORT}"
        )
    return str(address) if address is not None else plain, port if colon else PORT


def _is_listed_address(address: Address, port: int, allowed: Allowed) -> bool:
    return (str(address), port) in allowed.hosts or (port == PORT and _is_within(address, allowed.networks))


def _is_listed_name(name: str, port: int, allowed: Allowed) -> bool:
    if _NAME.fullmatch(name) is None or _is_number(name):
        return False
    below = [f"*.{name.split('.', up)[up]}" for up in range(1, name.count(".") + 1)]
    anywhere = ["*"] if "." in name else []
    return any((one, port) in allowed.hosts for one in (name, *below, *anywhere))


def _is_number(name: str) -> bool:
    """Return whether some resolvers take the name for an address, as 0x7f000001 and 127.1. No host name ends so."""
    return re.fullmatch(r"[0-9]+|0x[0-9a-f]*", name.rpartition(".")[2]) is not None


def _is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Return the address in a text, or the version 4 address that it wraps."""
    try:
        return _plain(ip_address(text))
    except ValueError:
        return None


def _plain(address: Address) -> Address:
    if not isinstance(address, IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if any(address in network for network in _LINKS) and int(address) > 0xFFFF:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
