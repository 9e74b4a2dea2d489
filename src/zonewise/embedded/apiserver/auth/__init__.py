"""Authentication and authorization: tokens, certificates, role-based access control."""
