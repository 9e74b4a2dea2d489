"""CertificateSigningRequests: who asks is what the server knows, not what the request says."""

from __future__ import annotations

from zonewise.embedded.rules.base import Obj, Rules, Scene


class SigningRules(Rules):
    """The rules of CertificateSigningRequests."""

    selectable = frozenset({"spec.signerName"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"spec.signerName": (obj.get("spec") or {}).get("signerName", "")}

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """Nobody asks in another's name."""
        obj["status"] = {}
        spec = obj.setdefault("spec", {})
        for key in ("uid", "extra"):
            spec.pop(key, None)
        user = scene.user
        spec["username"] = user.name
        spec["groups"] = list(user.groups)
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra}

    def prepare_update(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """What was asked stays."""
        obj["spec"] = old.get("spec") or {}
