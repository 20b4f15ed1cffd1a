"""What the driver's processes tell a Prometheus server, and whether they are well.

`registry` keeps the metrics of one process, `endpoint` serves them with `/healthz` and `/readyz`; `node`, `mps` and
`controller` say which metrics each process has. Nothing of ours is imported from here, so every part may be measured.
"""
