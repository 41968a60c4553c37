"""Which addresses a webhook may reach, so that it cannot be used to look inside the gateway's network.

By default only public addresses. With private ones allowed, still not those behind which a cloud keeps its
credentials, nor what is no host at all. The address that was checked is the one connected to, so that a name
that resolves to another one a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from registry.errors import InvalidInput

MAX_URL_CHARACTERS = 2000
ALLOW_PRIVATE = "APPLIANCE_WEBHOOK_PRIVATE_ADDRESSES"
"""The setting that lets webhooks reach loopback and private networks."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER = tuple(
    ipaddress.ip_network(network)
    # Link-local, where clouds keep their credentials (Amazon's IPv6 one too); "this network"; reserved.
    for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "0.0.0.0/8", "240.0.0.0/4", "::/128")
)


class AddressRefused(ConnectionError):
    """The receiver's address is not one that a webhook may reach."""


def check_url(url: str) -> str:
    """Return `url`.

    Raises:
        InvalidInput: it is not an http or https URL with a host, or it has a user, a password or a fragment.
    """
    try:
        parts = urlsplit(url)
        fine = _is_plain(url, parts) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise InvalidInput(
            f"Cannot send events to {url!r}: give http://host/path or https://host/path, of at most "
            f"{MAX_URL_CHARACTERS} printable ASCII characters, without user, password and '#'."
        )
    return url


def _is_plain(url: str, parts: SplitResult) -> bool:
    return (
        len(url) <= MAX_URL_CHARACTERS
        and url.isascii()
        and url.isprintable()
        and " " not in url
        and "\\" not in url
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and "#" not in url
    )


def choose_address(host: str, found: Sequence[str], *, allow_private: bool) -> str:
    """Return the first address, of those that `host` resolves to, that a webhook may reach.

    Raises:
        AddressRefused: there is none.
    """
    for address in found:
        if may_reach(ipaddress.ip_address(address.partition("%")[0]), allow_private=allow_private):
            return address
    hint = "" if allow_private else f"; {ALLOW_PRIVATE}=true allows loopback and private networks"
    raise AddressRefused(f"{host} is at {', '.join(found)}, where webhooks may not reach{hint}")


def may_reach(address: Address, *, allow_private: bool) -> bool:
    """Return whether a webhook may reach the address, whatever form it comes in."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return may_reach(inner, allow_private=allow_private)
    if address.is_multicast or any(
        address in network for network in _NEVER if network.version == address.version
    ):
        return False
    return allow_private or address.is_global


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one leads to: mapped, 6to4, Teredo, NAT64."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])
