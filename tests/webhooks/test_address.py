"""Forbidden webhook addresses, however they are disguised."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncekey.errors import Misuse
from oncekey.webhooks import LOOPBACK, Destinations, Forbidden, Target
from oncekey.webhooks._address import system_lookup

PUBLIC = ("93.184.215.14", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")
INSIDE = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1"),
    *("172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
    *("::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "ff02::1", "fec0::1", "2001:db8::1"),
    *("2001::1", "3fff::1", "100::1", "fe80::1%eth0", "2606:4700::1%eth0"),
)
METADATA = (
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    "fd00:ec2::254",
)
CARRIED = (
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::10.0.0.1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "::ffff:0:127.0.0.1"),
)
RULES = Destinations()


def target(url: str, rules: Destinations = RULES) -> Target:
    found = rules.target(url)
    assert isinstance(found, Target), found
    return found


# ------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_reached(address: str) -> None:
    assert RULES.objection(ip_address(address)) is None


@pytest.mark.parametrize("address", [*INSIDE, *METADATA, *CARRIED])
def test_inner_addresses_may_not(address: str) -> None:
    assert RULES.objection(ip_address(address)) is not None


@pytest.mark.parametrize("address", [*INSIDE, *METADATA, *CARRIED])
def test_nor_as_the_host_of_a_url(address: str) -> None:
    host = f"[{address.replace('%', '%25')}]" if ":" in address else address
    assert isinstance(RULES.target(f"https://{host}/hook"), Forbidden)


@pytest.mark.parametrize("address", [*INSIDE, *METADATA, *CARRIED])
def test_nor_as_one_of_the_addresses_of_a_name(address: str) -> None:
    hook = target("https://hooks.example.com/")
    for found in ([address], ["1.1.1.1", address], [address, "1.1.1.1"]):
        judged = RULES.addresses(hook, lambda host, port, found=found: found)  # type: ignore[misc]
        assert isinstance(judged, Forbidden)
        assert str(ip_address(address)) in judged.reason


@given(st.ip_addresses(v=4))
@example(IPv4Address("10.0.0.1"))
def test_what_python_calls_private_is_not_reached(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert RULES.objection(address) is not None


@given(st.ip_addresses(v=6))
@example(IPv6Address("::1"))
def test_what_python_calls_private_is_not_reached_by_ipv6(address: IPv6Address) -> None:
    if not address.is_global or address.is_multicast:
        assert RULES.objection(address) is not None


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_alike_however_it_is_carried(address: IPv4Address) -> None:
    plain = RULES.objection(address) is None
    for prefix in ("::ffff:", "64:ff9b::"):
        assert (RULES.objection(ip_address(f"{prefix}{address}")) is None) == plain
    six_to_four = IPv6Address((0x2002 << 112) | (int(address) << 80) | 1)
    assert RULES.objection(six_to_four) is not None


def test_networks_that_are_allowed_may_be_reached() -> None:
    rules = Destinations(allowed=("10.1.0.0/16", *LOOPBACK))
    for address in ("10.1.2.3", "127.0.0.1", "::1", "::ffff:10.1.2.3"):
        assert rules.objection(ip_address(address)) is None
    for address in ("10.2.0.1", "169.254.169.254"):
        assert rules.objection(ip_address(address)) is not None
    with pytest.raises(Misuse, match="allowed="):
        Destinations(allowed=("everything",))


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"])
def test_other_spellings_are_judged_by_what_they_lead_to(host: str) -> None:
    """The system's resolver reads them as addresses, and so would a client that is given them."""
    hook = target(f"https://{host}/")
    try:
        judged = RULES.addresses(hook, system_lookup)
    except OSError:
        return  # this system's resolver does not
    assert isinstance(judged, Forbidden)


def test_few_addresses_are_tried_each_once() -> None:
    hook = target("https://hooks.example.com/")
    many = [f"1.1.1.{n // 2}" for n in range(20)]
    assert RULES.addresses(hook, lambda *_: many) == [f"1.1.1.{n}" for n in range(4)]
    with pytest.raises(OSError, match="no address"):
        RULES.addresses(hook, lambda *_: [])
    assert isinstance(RULES.addresses(hook, lambda *_: ["nonsense"]), Forbidden)


# ------------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("https://example.com", "example.com", 443, "/", "example.com"),
        ("https://example.com:443/a?b=c", "example.com", 443, "/a?b=c", "example.com"),
        ("HTTPS://EXAMPLE.com:8443/A", "example.com", 8443, "/A", "example.com:8443"),
        ("https://bücher.example/", "xn--bcher-kva.example", 443, "/", "xn--bcher-kva.example"),
        ("https://1.1.1.1:1/x", "1.1.1.1", 1, "/x", "1.1.1.1:1"),
        ("https://[2606:4700::1111]/x", "2606:4700::1111", 443, "/x", "[2606:4700::1111]"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, authority: str) -> None:
    found = target(url)
    assert found == Target(True, host, port, path)
    assert found.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.com", "//example.com", "ftp://example.com", "file:///etc/passwd"),
        *("http://example.com", "https://", "https:///x", "https://user@example.com"),
        *("https://user:pass@example.com", "https://example.com#part", "https://example.com:0"),
        *("https://example.com:99999", "https://example.com:x", "https://exa mple.com"),
        *("https://example.com/\r\nHost: other", "https://example.com\\@127.0.0.1", "https://[x]"),
        *("https://-example.com", "https://a..b", "https://example.com/ä", "https://[::1"),
        *("https://" + "a" * 64 + ".example", "https://example.com/" + "x" * 2048),
        "https://1.1.1.1 .example.com",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    assert isinstance(RULES.target(url), Forbidden)


def test_plain_http_only_where_it_is_allowed() -> None:
    rules = Destinations(https_required=False)
    assert target("http://example.com/x", rules) == Target(False, "example.com", 80, "/x")
    assert target("http://example.com/x", rules).authority == "example.com"
    assert isinstance(rules.target("gopher://example.com"), Forbidden)


@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com/{text}"):
        found = RULES.target(url)
        if isinstance(found, Target):
            line = f"POST {found.path} HTTP/1.1\r\nHost: {found.authority}\r\n"
            assert line.encode("ascii").count(b"\n") == 2
