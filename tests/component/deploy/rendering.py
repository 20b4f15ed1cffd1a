"""The chart as Helm renders it, for the value sets that matter."""

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from lab.build import build, helm_program
from lab.progress import Progress
from lab.recipe import helm as helm_recipe

from tests.component.go_programs import go_program

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "dra-driver-gpu"
RELEASE, NAMESPACE = "dra-driver-gpu", "dra-gpu"
HOOK = "helm.sh/hook"

#: With these values the names are those of the plain manifests.
PLAIN_NAMES = {"fullnameOverride": "dra-gpu"}

#: As `base64 -w0 ca.crt` prints one.
CA_BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").decode()

#: Where pods of a Deployment run.
PLACED = {
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/c": "d"},
    "nodeSelector": {"example.com/pool": "system"},
    "tolerations": [],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"example.com/c": "d"}}}
            ]
        },
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/pool", "operator": "Exists"}]}]
            }
        },
    },
    "resources": {"requests": {"cpu": "100m"}},
}

#: Every value that a flag, an object or a branch of a template comes from is in one of these.
VALUE_SETS = {
    "default": {},
    "plain names": PLAIN_NAMES,
    "whole GPUs alone, nothing shared": {"views": ["gpu", "monitor"], "mps": {"enabled": False}},
    "another kubelet root": {"kubeletRoot": "/data01/kubelet/"},
    "kubelet directories one by one": {
        "kubeletPlugin": {
            "kubeletPluginsDirectoryPath": "/srv/plugins/",
            "kubeletRegistrarDirectoryPath": "/srv/registry",
        }
    },
    "driver container": {
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "nvidiaCDIHookPath": "/opt/toolkit/nvidia-cdi-hook",
        "host": {"mountRoot": False},
    },
    "own registry": {
        "image": {
            "repository": "registry.example.com:5000/gpu/driver",
            "digest": f"sha256:{'5e' * 32}",
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}],
    },
    "somebody else's accounts and classes": {
        "serviceAccount": {"create": False},
        "deviceClasses": {"create": False},
        "networkPolicy": {"enabled": False},
    },
    "somebody else's kinds": {"crds": {"create": False}},
    "no extended resource": {"deviceClasses": {"extendedResource": False}},
    "names": {
        "nameOverride": "gpus",
        "namespaceOverride": "elsewhere",
        "selectorLabelsOverride": {"team": "platform"},
        "serviceAccount": {"annotations": {"example.com/role": "gpu"}},
    },
    "every node, no vendor's label": {"vendors": {"nvidia": {"nodeLabels": []}}},
    "no metrics": {
        component: {"metrics": {"enabled": False}} for component in ("kubeletPlugin", "mps", "controller", "webhook")
    },
    "no webhook": {"webhook": {"enabled": False}},
    "no controller": {"controller": {"enabled": False}},
    "certificate of cert-manager": {"webhook": {"tls": {"mode": "cert-manager"}}},
    "certificate of a cluster's issuer": {
        "webhook": {
            "tls": {"mode": "cert-manager", "certManager": {"issuerName": "corporate", "issuerKind": "ClusterIssuer"}}
        }
    },
    "certificate of ones own": {
        "webhook": {"tls": {"mode": "secret", "secret": {"name": "our-tls", "caBundle": CA_BUNDLE}}}
    },
    "one replica of each": {
        component: {"replicas": 1, "podDisruptionBudget": {"enabled": False}} for component in ("controller", "webhook")
    },
    "monitored": {
        "kubeletPlugin": {"metrics": {"port": 9400, "path": "/gpu/metrics"}},
        "monitoring": {
            "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
    },
    "MPS pods left as they are": {"image": {"tag": "v9.9.9"}, "mps": {"image": {"tag": "v9.9.8"}}},
    "uninstalled whoever holds GPUs": {"uninstallCheck": {"enabled": False}},
    "names that look like numbers": {
        "nameOverride": "7",
        "fullnameOverride": "1e3",
        "namespaceOverride": "2027",
        "vendors": {"nvidia": {"nodeLabels": ["true"]}},
        "imagePullSecrets": [{"name": "42"}],
        "webhook": {"tls": {"mode": "secret", "secret": {"name": "123", "caBundle": CA_BUNDLE}}},
        "monitoring": {"dashboard": {"enabled": True}},
    },
    "leaving without metrics": {"kubeletPlugin": {"leave": True, "metrics": {"enabled": False}}},
    "leaving the nodes": {
        "kubeletPlugin": {"leave": True, "updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}
    },
    "no vendor": {"vendors": {"nvidia": {"enabled": False}}},
    "everything": {
        "migProfiles": ["1g.10gb", "3g.40gb+me"],
        "sharedMigProfiles": ["3g.40gb"],
        "consumableShares": 4,
        "numaLists": True,
        "expectedGpus": 8,
        "health": {
            "evict": "lost",
            "holdOffSeconds": 90,
            "periodSeconds": 2.5,
            "ignoreXids": [13, 31],
            "xidPolicy": {"94": "fatal", "48": "notice"},
        },
        "gpuTimeoutSeconds": 7.5,
        "logLevel": "debug",
        "extraEdits": {
            "env": ["CUDA_CACHE_PATH=/tmp/cuda"],
            "mounts": [{"hostPath": "/opt/a", "containerPath": "/opt/a", "options": ["ro", "bind"]}],
        },
        "kubeletPlugin": {
            "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
            "podAnnotations": {"example.com/a": "b"},
            "podLabels": {"example.com/c": "d"},
            "nodeSelector": {"example.com/pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                    }
                }
            },
            "extraVolumes": [{"name": "more", "hostPath": {"path": "/opt/more"}}],
            "containers": {
                "gpus": {
                    "env": [{"name": "A", "value": "b"}],
                    "extraVolumeMounts": [{"name": "more", "mountPath": "/opt/more"}],
                    "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "512Mi"}},
                }
            },
        },
        "mps": {
            "podAnnotations": {"example.com/a": "b"},
            "podLabels": {"example.com/c": "d"},
            "nodeSelector": {"example.com/sharing": "on"},
            "tolerations": [],
            "extraVolumes": [{"name": "more", "hostPath": {"path": "/opt/more"}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/opt/more"}],
            "env": [{"name": "A", "value": "b"}],
            "resources": {"requests": {"memory": "32Mi"}},
            "image": {"digest": f"sha256:{'5e' * 32}"},
            "logLevel": "warning",
        },
        "criticalPodsQuota": {"enabled": True, "pods": 100},
        "controller": {
            "replicas": 3,
            "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s", "retryPeriod": "2.5s"},
            "sweepGraceSeconds": 60,
            "sweepPeriodSeconds": 20,
            "resize": {"allowGrowth": "Any"},
            **PLACED,
        },
        "uninstallCheck": {"waitSeconds": 60, "resources": {"requests": {"cpu": "100m"}}},
        "webhook": {"failurePolicy": "Ignore", "timeoutSeconds": 5, "containerPort": 9443, **PLACED},
    },
}


@dataclass(frozen=True)
class Rendered:
    """What Helm made of the chart: the objects, by kind and name."""

    objects: tuple[dict, ...]

    def of_kind(self, kind: str) -> list[dict]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, ending: str) -> dict:
        found = [one for one in self.of_kind(kind) if one["metadata"]["name"].endswith(ending)]
        assert len(found) == 1, f"{len(found)} of {kind} ...{ending}"
        return found[0]

    @property
    def lasting(self) -> list[dict]:
        """What is there as long as the release is; a hook's objects come and go."""
        return [one for one in self.objects if HOOK not in one["metadata"].get("annotations", {})]

    @property
    def workloads(self) -> list[dict]:
        return [one for one in self.objects if one["kind"] in {"DaemonSet", "Deployment", "Job"}]


def helm(*arguments: str | Path, values: dict | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm without a cluster; it is built where it is not there yet."""
    build(Progress(), helm_recipe())
    return subprocess.run(
        [helm_program(), *arguments, *(["--values", "-"] if values is not None else [])],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"KUBECONFIG": os.devnull},
    )


def template(values: dict, *, namespace: str = NAMESPACE) -> subprocess.CompletedProcess[str]:
    """Render the chart; the caller looks at the exit status."""
    return helm("template", RELEASE, CHART, "--namespace", namespace, values=values)


@cache
def rendered(name: str) -> Rendered:
    """Return the objects of one of the value sets."""
    made = template(VALUE_SETS[name])
    assert made.returncode == 0, made.stderr
    return Rendered(tuple(documents(made.stdout)))


def documents(text: str) -> list[dict]:
    """Return the objects in a text of YAML documents; by libyaml, which takes a tenth of the time."""
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one is not None]


def decoding_errors(objects: Sequence[dict]) -> list[str]:
    """Return what Kubernetes' own types find wrong with objects: fields they do not have, values of another kind."""
    lines = "".join(f"{json.dumps(one)}\n" for one in objects)
    made = subprocess.run([go_program("go-manifests")], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in made.stdout.splitlines()]
    assert len(answers) == len(objects)
    return [
        f"{one['kind']} {one['metadata']['name']}: {answer}"
        for one, answer in zip(objects, answers, strict=True)
        if answer
    ]
