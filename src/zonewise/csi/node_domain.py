"""Where this node is: set on the command line, or read from its labels.

Labels are followed by a watch of the one Node. As long as one of them is missing the domain is not
known: that is reported (Probe is not ready, NodeGetInfo is UNAVAILABLE), never guessed, and nothing
crashes; when the label is added or changed, the next request is answered with it.
"""

from __future__ import annotations

from zonewise.api.objects.core import Node
from zonewise.csi.errors import unavailable
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.store import Store
from zonewise.runtime.process.logs import logger
from zonewise.storage.domains import DomainLabels, domain_value_error
from zonewise.topology.nodes import is_out_of_service

_log = logger("csi")


class FixedDomain:
    """A domain that was given."""

    def __init__(self, segments: dict[str, str]) -> None:
        self._segments = segments

    def segments(self) -> dict[str, str]:
        """Short label names to values."""
        return dict(self._segments)

    def problem(self) -> str | None:
        """It is always known."""
        return None

    def is_out_of_service(self) -> bool:
        """Nobody says so without an orchestrator."""
        return False


class StoredDomain:
    """The domain of a Node's labels, as a store has them."""

    def __init__(self, nodes: Store[Node], node: str, labels: DomainLabels) -> None:
        self._nodes = nodes
        self._node = node
        self._labels = labels

    def segments(self) -> dict[str, str]:
        """Short label names to values, as the labels are now."""
        problem = self.problem()
        if problem is not None:
            raise unavailable(problem)
        return self._labels.segments_of_node(self._node_labels() or {})

    def problem(self) -> str | None:
        """What is missing; None if nothing is."""
        node_labels = self._node_labels()
        if node_labels is None:
            return f"waiting for Node {self._node}: the API server has not shown it yet"
        missing = self._labels.missing_labels(node_labels)
        if missing:
            return f"waiting for label {', '.join(missing)} on Node {self._node}"
        for name, value in self._labels.segments_of_node(node_labels).items():
            if error := domain_value_error(value):
                return f"label {name} of Node {self._node} {error}"
        return None

    def is_out_of_service(self) -> bool:
        """Whether the Node has the taint now."""
        node = self._nodes.get(("", self._node))
        return node is not None and is_out_of_service(node)

    def _node_labels(self) -> dict[str, str] | None:
        node = self._nodes.get(("", self._node))
        return None if node is None else dict(node.metadata.labels or {})


class WatchedDomain(StoredDomain):
    """The same for one Node of a cluster, of whose changes the log tells."""

    def __init__(self, cache: Cache, node: str, labels: DomainLabels) -> None:
        self._reported: str | None = ""
        store = cache.store(Node, field_selector=f"metadata.name={node}")
        super().__init__(store, node, labels)
        store.on_change(lambda *_: self._report())

    def _report(self) -> None:
        problem = self.problem()
        if problem != self._reported:
            self._reported = problem
            if problem is not None:
                _log.warning(problem)
            else:
                _log.info("this node's domain is known", domain=self.segments())
