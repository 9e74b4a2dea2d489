"""One node's packets: Services in the kernel's nf_tables, by the routes that ``traffic`` decides.

``proxier`` follows the cluster, ``tables`` is what is written and how, ``netlink`` the protocol to
the kernel, ``program`` puts all parts together. What others learn of the proxier's work:

- ``observer``: the interface that the proxier calls after each change, write and failure
- ``summary``: an observer that stores the last state of each Service
- ``notes``: an observer that creates events about faults of Services
- ``flows`` and ``metrics``: observers that remove stale UDP flows, and count
- ``monitor``: HTTP servers for health, metrics and routes
- ``healthchecks``: HTTP servers for the probes of load balancers, one per Service
- ``lookout``: starts ``metrics``, ``monitor`` and ``healthchecks`` after the first write
"""
