"""The pipelines: in which order the steps run, where, and what people see of it."""
