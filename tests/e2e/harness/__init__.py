"""What end-to-end tests stand on: the cluster, namespaces and objects, the driver on a node, watches, budgets."""
