"""Names outside of the cluster: other servers, their answers, and how long those are kept."""
