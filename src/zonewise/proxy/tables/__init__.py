"""Services in the kernel's nf_tables: the frame, the elements, and how both are made.

``ruleset`` is the frame, ``layout`` makes elements of routes, ``desired`` keeps what is wanted,
``rendering`` writes it as text; all pure. ``kernel`` makes the kernel's tables equal to it, and
``writer`` says in which transactions. ``preview`` is all of it for a node, as text.
"""
