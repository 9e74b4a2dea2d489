"""Takeover on a cluster: labels on nodes, pods that are deleted, and a status."""

from zonewise.csi.takeover.controller import TakeoverController, TakeoverSettings
from zonewise.csi.takeover.source import FollowedConfiguration, TakeoverSource
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP, STATUS_MAP, TakeoverStatus

__all__ = [
    "CONFIG_KEY",
    "CONFIG_MAP",
    "STATUS_MAP",
    "FollowedConfiguration",
    "TakeoverController",
    "TakeoverSettings",
    "TakeoverSource",
    "TakeoverStatus",
]
