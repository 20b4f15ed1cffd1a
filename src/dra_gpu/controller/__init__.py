"""The controller: what one process does for a whole cluster. Composition root, beside the node plugin."""
