"""What csi-sanity is run with, and how much of it has to run."""

from __future__ import annotations

SECRET = "correct-horse-battery"
RUNNABLE = 72
"""Of 103: the rest is about attaching, changing parameters, groups and health, not offered here."""

KINDS = (
    "CreateVolumeSecret",
    "DeleteVolumeSecret",
    "ControllerValidateVolumeCapabilitiesSecret",
    "ControllerExpandVolumeSecret",
    "NodeStageVolumeSecret",
    "NodePublishVolumeSecret",
    "CreateSnapshotSecret",
    "DeleteSnapshotSecret",
    "ListSnapshotsSecret",
)
