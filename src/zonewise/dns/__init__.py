"""Names: a DNS server for the cluster's domain, near answers for headless Services."""

from zonewise.dns.server import DnsServer, DnsSettings
from zonewise.dns.sources import Sources

__all__ = ["DnsServer", "DnsSettings", "Sources"]
