"""Claims and volumes: binding, simulated volumes, attachment and protection."""

from zonewise.embedded.components.volumes.attachment import AttachDetach
from zonewise.embedded.components.volumes.binder import Binder
from zonewise.embedded.components.volumes.ephemeral import Ephemeral
from zonewise.embedded.components.volumes.protection import Protection
from zonewise.embedded.components.volumes.provisioner import Provisioner

__all__ = ["AttachDetach", "Binder", "Ephemeral", "Protection", "Provisioner"]
