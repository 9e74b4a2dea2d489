"""Annotations, finalizers and values that the volume controllers share."""

from __future__ import annotations

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"

EMBEDDED = "zonewise.io/embedded"
"""The provisioner of simulated volumes."""

DRIVER = "embedded.zonewise.io"
"""The name of its CSI driver, which may have no slash."""

NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
YES = "yes"
