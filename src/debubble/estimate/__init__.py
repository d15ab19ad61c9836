"""Physics: a model, a cluster and a layout become times and bytes."""
