"""Where things are: zones of nodes and the share of traffic each zone sends. Pure."""
