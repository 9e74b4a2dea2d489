"""The Identity service: the driver's name, and whether it can work."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.wrappers_pb2 import BoolValue

from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services.plugin import Plugin
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind

_Service = csi.PluginCapability.Service
_Expansion = csi.PluginCapability.VolumeExpansion


class IdentityService:
    """Answers for a driver; ``problem`` says why it cannot work now, if it cannot."""

    def __init__(self, plugin: Plugin, problem: Callable[[], str | None]) -> None:
        self._plugin = plugin
        self._problem = problem

    def bindings(self) -> list[ServedMethod]:
        """The calls of this service."""
        return [
            bind(methods.GET_PLUGIN_INFO, self.get_plugin_info),
            bind(methods.GET_PLUGIN_CAPABILITIES, self.get_plugin_capabilities),
            bind(methods.PROBE, self.probe),
        ]

    def get_plugin_info(self, _request: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        """Name and version."""
        plugin = self._plugin
        return csi.GetPluginInfoResponse(name=plugin.name, vendor_version=plugin.version)

    def get_plugin_capabilities(
        self, _request: csi.GetPluginCapabilitiesRequest
    ) -> csi.GetPluginCapabilitiesResponse:
        """Topology only where domain labels are: without, every claim would wait for a domain."""
        services = [_Service.CONTROLLER_SERVICE]
        if self._plugin.labels.labels:
            services += [
                _Service.VOLUME_ACCESSIBILITY_CONSTRAINTS,
                _Service.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS,
            ]
        capabilities = [csi.PluginCapability(service=_Service(type=kind)) for kind in services]
        online = _Expansion(type=_Expansion.ONLINE)
        capabilities.append(csi.PluginCapability(volume_expansion=online))
        return csi.GetPluginCapabilitiesResponse(capabilities=capabilities)

    def probe(self, _request: csi.ProbeRequest) -> csi.ProbeResponse:
        """Not ready is an answer, not an error: the caller waits, and restarts nothing."""
        return csi.ProbeResponse(ready=BoolValue(value=self._problem() is None))
