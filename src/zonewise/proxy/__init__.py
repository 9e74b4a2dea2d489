"""One node's packets: Services in the kernel's nf_tables, by the routes that ``traffic`` decides.

``proxier`` follows the cluster, ``tables`` is what is written and how, ``netlink`` how the kernel
is spoken to; ``flows``, ``healthchecks``, ``notes`` and ``metrics`` look on and do their part.
"""
