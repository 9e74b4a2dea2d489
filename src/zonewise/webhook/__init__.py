"""Admission: what Zonewise says about objects before they are stored."""
