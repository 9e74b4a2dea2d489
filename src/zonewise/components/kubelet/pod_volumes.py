"""What kubelets need from whoever brings volumes to the paths of pods."""

from __future__ import annotations

from typing import Protocol

from zonewise.api.objects.pod import Pod


class PodVolumes(Protocol):
    """Volumes at the paths of pods. Every call may be repeated."""

    async def mount(self, pod: Pod) -> str:
        """Have the volumes of a pod on its node; says why not yet, nothing if they are there."""

    async def unmount(self, node: str, uid: str) -> None:
        """Take away what a pod had; raises if that cannot be done yet."""

    async def run(self) -> None:
        """Follow pods that end or vanish, until cancelled."""
