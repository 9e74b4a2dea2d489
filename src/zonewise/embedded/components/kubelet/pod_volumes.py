"""What kubelets need to have volumes mounted at the paths of pods."""

from __future__ import annotations

from typing import Protocol

from zonewise.api.objects.pod import Pod


class PodVolumes(Protocol):
    """Volumes at the paths of pods. Every call may be repeated."""

    async def mount(self, pod: Pod) -> str:
        """Mount the volumes of a pod on its node; says why not yet, empty if they are mounted."""

    async def unmount(self, node: str, uid: str) -> None:
        """Unmount what a pod had; raises if that is not possible yet."""

    async def run(self) -> None:
        """Follow pods that end or vanish, until cancelled."""
