import pytest

from zonewise.runtime.config.egress import is_loopback, proxy_for

PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


def test_scheme_chooses_the_variable() -> None:
    """An https URL takes HTTPS_PROXY, an http URL HTTP_PROXY, and neither the other's."""
    environ = {"HTTPS_PROXY": "http://a:1", "http_proxy": "http://b:2"}
    assert proxy_for("https://k8s.example", environ) == "http://a:1"
    assert proxy_for("http://k8s.example", environ) == "http://b:2"
    assert proxy_for("http://k8s.example", {"HTTPS_PROXY": "http://a:1"}) is None


def test_a_proxy_without_scheme_is_http() -> None:
    """A bare host and port mean an HTTP proxy."""
    assert proxy_for("https://k8s.example", {"https_proxy": "p:3128"}) == "http://p:3128"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_the_loopback_is_never_proxied(host: str) -> None:
    """Loopback addresses are reached directly."""
    assert proxy_for(f"https://{host}:6443", PROXY) is None


@pytest.mark.parametrize(
    ("exempt", "url", "direct"),
    [
        ("example.com", "https://example.com", True),
        ("example.com", "https://api.example.com:6443", True),
        ("example.com", "https://notexample.com", False),
        (".example.com", "https://api.example.com", True),
        (".example.com", "https://example.com", False),
        ("*.example.com", "https://api.example.com", True),
        ("EXAMPLE.com", "https://api.Example.com", True),
        ("10.0.0.0/8", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3:6443", False),
        ("10.1.2.3", "https://10.1.2.3", True),
        ("10.1.2.3:6443", "https://10.1.2.3:6443", True),
        ("10.1.2.3:6443", "https://10.1.2.3:443", False),
        ("host:443", "https://host", True),
        ("fd00::/8", "https://[fd00::7]:6443", True),
        ("[fd00::7]:6443", "https://[fd00::7]:6443", True),
        ("[fd00::7]:6443", "https://[fd00::7]:1", False),
        ("a, ,b ,*", "https://anything", True),
        ("", "https://anything", False),
    ],
)
def test_exemptions(exempt: str, url: str, direct: bool) -> None:
    """NO_PROXY lists hosts, suffixes, addresses and blocks, as for Go programs."""
    assert (proxy_for(url, {**PROXY, "NO_PROXY": exempt}) is None) == direct


def test_loopback_names() -> None:
    """Only loopback addresses and localhost are local."""
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("localhost.example.com")
    assert not is_loopback("10.0.0.1")
