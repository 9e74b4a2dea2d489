"""What may still change or refuse a write: built-in plugins, quotas, webhooks."""
