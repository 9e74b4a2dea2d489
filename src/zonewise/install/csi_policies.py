"""What the account of the CSI controller may write of nodes and volumes.

The driver labels nodes for takeovers and its sidecars make and change volumes. Without a limit on
fields, that is the right to take a taint off any node, and to make a volume of any folder of one.
"""

from __future__ import annotations

from zonewise.install.expressions import SERVER_KEYS, literal, unchanged
from zonewise.install.policies import FieldLimit
from zonewise.storage.domains import KEY_PREFIX, TAKEOVER_PREFIX


def csi_limits(prefix: str, user: str, driver: str) -> list[FieldLimit]:
    """The limits of a user, named by a prefix."""
    begin = f"{KEY_PREFIX}{driver}/{TAKEOVER_PREFIX}"
    after, before = (f"{item}.metadata.?labels.orValue({{}})" for item in ("object", "oldObject"))
    free = f"k.startsWith({literal(begin)}) || "
    return [
        FieldLimit(
            name=f"{prefix}-nodes",
            users=(user,),
            group="",
            resources=("nodes",),
            expressions=(
                "object.spec == oldObject.spec",
                unchanged("metadata", "labels", *SERVER_KEYS),
                f"{before}.all(k, {free}(k in {after} && {after}[k] == {before}[k]))",
                f"{after}.all(k, {free}k in {before})",
            ),
            message=f"Zonewise's CSI driver may change only labels {begin}* of nodes.",
        ),
        FieldLimit(
            name=f"{prefix}-persistentvolumes",
            users=(user,),
            operations=("CREATE", "UPDATE", "DELETE"),
            group="",
            resources=("persistentvolumes",),
            expressions=tuple(
                f"{item} == null || {item}.spec.?csi.?driver.orValue('') == {literal(driver)}"
                for item in ("object", "oldObject")
            ),
            message=f"Zonewise's CSI driver may write only volumes of {driver}.",
        ),
    ]
