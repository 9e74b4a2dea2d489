"""Names: a DNS server for the cluster's domain, near answers for headless Services."""

from zonewise.dns.server import DnsServer, DnsSettings
from zonewise.dns.sources import WATCHES, Sources

__all__ = ["WATCHES", "DnsServer", "DnsSettings", "Sources"]
