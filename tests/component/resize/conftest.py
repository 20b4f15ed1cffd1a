"""Nodes with real processes, as the node plugin's own tests make them."""

from tests.component.node.conftest import make_sharing as make_sharing  # noqa: PLC0414 - a fixture of this directory, too
from tests.component.node.conftest import make_world as make_world  # noqa: PLC0414 - the same
