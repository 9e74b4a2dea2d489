"""Rules by kind."""
