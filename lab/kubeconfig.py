"""Kubeconfig files for one server and one token; JSON, which every reader of YAML takes."""

import json
from pathlib import Path


def write_kubeconfig(target: Path, *, server: str, ca: Path, token: str = "", token_file: Path | None = None) -> None:
    """Write a kubeconfig to `target`, readable by the owner alone.

    It holds the token itself, or names a file that every client reads anew.
    """
    user = {"tokenFile": str(token_file)} if token_file else {"token": token}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
        "current-context": "lab",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(json.dumps(config, indent=1) + "\n")
