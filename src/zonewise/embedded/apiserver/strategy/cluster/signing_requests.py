"""CertificateSigningRequests: the requester is the authenticated user, whatever the body says."""

from __future__ import annotations

from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, revert

VERDICTS = frozenset({"Approved", "Denied"})


class SigningRules(Rules):
    """The rules of CertificateSigningRequests."""

    selectable = frozenset({"spec.signerName"})

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The requester is the authenticated user."""
        obj["status"] = {}
        spec = obj.setdefault("spec", {})
        for key in ("uid", "extra"):
            spec.pop(key, None)
        user = context.user
        spec["username"] = user.name
        spec["groups"] = list(user.groups)
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra}

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """The request does not change; an approval does not sign."""
        obj["spec"] = old.get("spec") or {}
        if context.subresource == "approval":
            revert(obj.setdefault("status", {}), old.get("status") or {}, "certificate")

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """A signer neither approves nor denies."""
        conditions = (obj.get("status") or {}).get("conditions") or []
        before = (old.get("status") or {}).get("conditions") or []
        verdicts = [value for value in before if value.get("type") in VERDICTS]
        others = [value for value in conditions if value.get("type") not in VERDICTS]
        if verdicts or others or "conditions" in (obj.get("status") or {}):
            obj["status"]["conditions"] = [*verdicts, *others]
