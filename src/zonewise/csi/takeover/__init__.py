"""Takeover on a cluster: labels on nodes, pods that are deleted, and a status."""

from zonewise.csi.takeover.controller import TakeoverController
from zonewise.csi.takeover.source import FollowedConfiguration, TakeoverSource
from zonewise.csi.takeover.status import CONFIG, KEY, STATUS, TakeoverStatus

__all__ = [
    "CONFIG",
    "KEY",
    "STATUS",
    "FollowedConfiguration",
    "TakeoverController",
    "TakeoverSource",
    "TakeoverStatus",
]
