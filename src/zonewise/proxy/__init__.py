"""One node's packets: Services in the kernel's nf_tables, by the routes that ``traffic`` decides.

``proxier`` follows the cluster, ``tables`` is what is written and how, ``netlink`` the protocol to
the kernel; ``flows``, ``healthchecks``, ``notes`` and ``metrics`` are observers.
"""
