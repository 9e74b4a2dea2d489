"""Who calls and what they may do: tokens, certificates, role-based access control."""
