"""CoreDNS, the name server we are compared with: built from its pinned module, run on loopback."""
