"""Writes what the chart has from elsewhere in the repository, and docs/values.md of it (`make chart`).

The manifests in `deploy/` are what users without Helm apply and what the end-to-end tests hold. The chart's templates
of the same objects are made from their text: names and the namespace become the release's, labels are added, and
comments stay.
"""  # noqa: INP001 - a script

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[1]
DEPLOY = _ROOT / "deploy"
TEMPLATES = DEPLOY / "helm" / "dra-driver-gpu" / "templates" / "generated"
REFERENCE = _ROOT / "docs" / "values.md"

_FULLNAME = '{{ include "dra-driver-gpu.fullname" . }}'
_NAMESPACE = '{{ include "dra-driver-gpu.namespace" . }}'
# A namespace may be named 123, which is a number in YAML.
_QUOTED_NAMESPACE = '{{ include "dra-driver-gpu.namespace" . | quote }}'
_LABELS = '  labels:\n    {{- include "dra-driver-gpu.labels" . | nindent 4 }}\n'
_ANNOTATIONS = (
    "  {{- with .Values.serviceAccount.annotations }}\n  annotations:\n    {{- toYaml . | nindent 4 }}\n  {{- end }}\n"
)
# With a kind go all objects of it: an uninstall leaves it, an upgrade renews it.
_KEPT = "  annotations:\n    helm.sh/resource-policy: keep\n"
# The name and the namespace in the plain manifests; `dra-gpu.dev` is a domain and stays.
_OURS = "dra-gpu"
_LEFT = re.compile(rf"(?<![\w.-]){_OURS}(?![\w-]*\.dev)")


class ManifestError(Exception):
    """A manifest has something that cannot be made a template; the message says what."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of `deploy/` and when the chart has its objects.

    Attributes:
        path: below `deploy/`.
        condition: when the chart has them at all; always without one.
        rights_condition: when it has roles and bindings.
        kinds: those that are taken from the file; all without any.
    """

    path: str
    condition: str = ""
    rights_condition: str = ""
    kinds: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The template's file name."""
        return self.path.replace("/", "-")


_WEBHOOK = ".Values.webhook.enabled"
SOURCES = (
    Source("crds.yaml", ".Values.crds.create"),
    Source("rbac/node.yaml"),
    Source("rbac/controller.yaml", ".Values.controller.enabled"),
    # Somebody else's certificate is a file: nothing is asked of the cluster.
    Source("rbac/webhook.yaml", _WEBHOOK, 'eq .Values.webhook.tls.mode "own"'),
    Source("webhook.yaml", _WEBHOOK, kinds=("ValidatingWebhookConfiguration",)),
    Source("deviceclasses.yaml", ".Values.deviceClasses.create"),
    Source("policies.yaml"),
)
_RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def templates() -> dict[str, str]:
    """Return every template by its file name.

    Raises:
        ManifestError: a manifest cannot be made one.
    """
    return {
        source.target: template(source, (DEPLOY / source.path).read_text())
        for source in SOURCES
        if (DEPLOY / source.path).exists()
    }


def template(source: Source, manifest: str) -> str:
    """Make a template from the text of a manifest.

    Raises:
        ManifestError: it cannot be made one.
    """
    documents = [document for document in re.split(r"(?m)^---\n", manifest) if _is_taken(source, document)]
    text = "---\n".join(filter(None, (_document(source, document) for document in documents)))
    note = f"{{{{- /* Made from deploy/{source.path} by `make chart`: change that one. */ -}}}}\n"
    if source.condition:
        text = f"{{{{- if {source.condition} }}}}\n{text}{{{{- end }}}}\n"
    return note + text


def _is_taken(source: Source, document: str) -> bool:
    kind = _kind(document)
    return kind in source.kinds if source.kinds else kind != "Namespace"


def _document(source: Source, text: str) -> str:
    if "{{" in text:
        raise ManifestError(f"deploy/{source.path} has {{{{, which a template would read as its own")
    kind = _kind(text)
    if kind is None:
        return text
    text = re.sub(rf"(?m)^(\s*(?:- )?name: ){_OURS}-", rf"\g<1>{_FULLNAME}-", text)
    text = re.sub(rf"(?m)^(\s*resourceNames: \[){_OURS}-", rf"\g<1>{_FULLNAME}-", text)
    text = re.sub(rf"(?m)^(\s*namespace: ){_OURS}$", rf"\g<1>{_QUOTED_NAMESPACE}", text)
    text = re.sub(rf"system:serviceaccount:{_OURS}:{_OURS}-", f"system:serviceaccount:{_NAMESPACE}:{_FULLNAME}-", text)
    text, found = re.subn(r"(?m)^metadata:\n((?:  (?:name|namespace): .*\n)+)", rf"metadata:\n\g<1>{_LABELS}", text)
    if found != 1:
        raise ManifestError(f"a {kind} in deploy/{source.path} needs `metadata:` with a name below it and nothing else")
    if kind == "ServiceAccount":
        text = f"{{{{- if .Values.serviceAccount.create }}}}\n{text.rstrip()}\n{_ANNOTATIONS}{{{{- end }}}}\n"
    if kind in _RIGHTS and source.rights_condition:
        text = f"{{{{- if {source.rights_condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"
    if kind == "CustomResourceDefinition":
        text = text.replace(_LABELS, f"{_LABELS}{_KEPT}", 1)
    if kind == "DeviceClass":
        text = _optional_resource(text)
    if kind == "ValidatingWebhookConfiguration":
        text = _webhook_configuration(text)
    _check(source, text)
    return text


def _optional_resource(text: str) -> str:
    """Leave it to a value whether containers may ask for the class's extended resource."""
    return re.sub(
        r"(?m)^((?:  #.*\n)*  extendedResourceName: .*\n)",
        "  {{- if .Values.deviceClasses.extendedResource }}\n\\g<1>  {{- end }}\n",
        text,
    )


def _webhook_configuration(text: str) -> str:
    """Leave to values what becomes of claims while no webhook answers, and who says whom the API server may trust."""
    text = text.replace(
        "metadata:\n",
        "metadata:\n"
        '  {{- if eq .Values.webhook.tls.mode "cert-manager" }}\n'
        "  annotations:\n"
        f"    cert-manager.io/inject-ca-from: {_NAMESPACE}/{_FULLNAME}-webhook\n"
        "  {{- end }}\n",
        1,
    )
    text = re.sub(r"(?m)^(    failurePolicy: )Fail$", r"\g<1>{{ .Values.webhook.failurePolicy }}", text)
    text = re.sub(r"(?m)^(    timeoutSeconds: )10$", r"\g<1>{{ .Values.webhook.timeoutSeconds }}", text)
    return re.sub(
        r"(?m)^    clientConfig:\n",
        "    clientConfig:\n"
        '      {{- if eq .Values.webhook.tls.mode "secret" }}\n'
        "      caBundle: {{ .Values.webhook.tls.secret.caBundle | quote }}\n"
        "      {{- end }}\n",
        text,
    )


def _check(source: Source, text: str) -> None:
    """Refuse a name of ours that no rule above made the release's."""
    for line in text.splitlines():
        bare = re.sub(r"\{\{.*?\}\}|#.*", "", line)
        if _LEFT.search(bare):
            raise ManifestError(f"deploy/{source.path}: no rule makes {_OURS!r} the release's in: {line.strip()}")


def _kind(document: str) -> str | None:
    found = re.search(r"(?m)^kind: (\w+)$", document)
    return found[1] if found else None


def reference() -> str:
    """Return the page of all values: from the schema what each means, from values.yaml what it is by itself."""
    chart = TEMPLATES.parents[1]
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    rows = "".join(
        f"| `{name}` | {_cell(default)} | {meaning} |\n" for name, default, meaning in _values(schema, defaults)
    )
    return (
        "# Values of the chart\n\n"
        "Names are those of NVIDIA's chart where the meaning is the same. What is not in this table is refused.\n"
        "Made by `make chart` from `values.schema.json` and `values.yaml`.\n\n"
        "| Value | Default | Meaning |\n|---|---|---|\n" + rows
    )


def _values(schema: dict[str, Any], defaults: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    for name, one in schema["properties"].items():
        default = defaults.get(name) if isinstance(defaults, dict) else None
        if "properties" in one:
            yield from _values(one, default, f"{path}{name}.")
        elif name != "global":
            yield f"{path}{name}", default, one.get("description", "").replace("|", "\\|")


def _cell(default: Any) -> str:
    text = "" if default is None else json.dumps(default).replace("|", "\\|")
    return f"`{text}`" if text not in ("", '""', "[]", "{}") else ""


def main() -> None:
    """Write the reference, and every template; remove what is none any more."""
    REFERENCE.write_text(reference())
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    wanted = templates()
    for path in TEMPLATES.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (TEMPLATES / name).write_text(text)


if __name__ == "__main__":
    main()
