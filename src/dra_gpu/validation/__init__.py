"""What is wrong with a manifest, before anything happens to a GPU. Pure; for node plugin, webhook and command line."""
