"""Claims and volumes: who is bound to whom, simulated volumes, and what holds them back."""

from zonewise.embedded.volumes.binder import Binder
from zonewise.embedded.volumes.ephemeral import Ephemeral
from zonewise.embedded.volumes.protection import Protection
from zonewise.embedded.volumes.provisioner import Provisioner

__all__ = ["Binder", "Ephemeral", "Protection", "Provisioner"]
