"""Follows the label of the own Node that narrows the views of its GPUs, and tells what is wrong with it once."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dra_gpu.apiserver.resources import Node
from dra_gpu.inventory.model import View
from dra_gpu.inventory.view_label import LABEL, narrow

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class NodeViews:
    """Which views this node offers.

    Attributes:
        offered: what the operator chose for all nodes.
        on_views: told the views whenever they change, and first when the Node has been read.
        on_trouble: told what a person has to act on, as an Event's reason and note.
    """

    offered: tuple[View, ...]
    on_views: Callable[[tuple[View, ...]], None]
    on_trouble: Callable[[str, str], None]
    _views: tuple[View, ...] | None = None
    _problem: str = ""

    def read(self, node: Node) -> None:
        """Take the Node as it is now; a label that cannot be read leaves everything as it was."""
        found = narrow(node.metadata.labels.get(LABEL), self.offered)
        if found.problem and found.problem != self._problem:
            _log.error("the label that narrows views is not followed in full", reason=found.problem)
            self.on_trouble("ViewsLabel", found.problem)
        self._problem = found.problem
        views = found.views if found.views is not None else self._views or self.offered
        if views != self._views:
            if self._views is not None or views != self.offered:
                _log.info("views of this node", views=[view.value for view in views])
            self._views = views
            self.on_views(views)
