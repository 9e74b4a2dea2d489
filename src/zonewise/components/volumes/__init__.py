"""Claims and volumes: binding, simulated volumes, attachment and protection."""

from zonewise.components.volumes.attachment import AttachDetach
from zonewise.components.volumes.binder import Binder
from zonewise.components.volumes.ephemeral import Ephemeral
from zonewise.components.volumes.protection import Protection
from zonewise.components.volumes.provisioner import Provisioner

__all__ = ["AttachDetach", "Binder", "Ephemeral", "Protection", "Provisioner"]
