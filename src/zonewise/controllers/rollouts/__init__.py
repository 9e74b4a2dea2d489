"""Rollouts by failure domain on a cluster."""

from zonewise.controllers.rollouts.controller import RolloutsController, RolloutsSettings

__all__ = ["RolloutsController", "RolloutsSettings"]
