"""The controllers of claims and volumes: binding, simulated volumes, attachment, protection."""

from zonewise.embedded.components.volumes.attachment import AttachDetachController
from zonewise.embedded.components.volumes.binder import PersistentVolumeController
from zonewise.embedded.components.volumes.ephemeral import EphemeralVolumeController
from zonewise.embedded.components.volumes.protection import VolumeProtectionController
from zonewise.embedded.components.volumes.provisioner import SimulatedProvisioner

__all__ = [
    "AttachDetachController",
    "EphemeralVolumeController",
    "PersistentVolumeController",
    "SimulatedProvisioner",
    "VolumeProtectionController",
]
