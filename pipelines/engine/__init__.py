"""Runs a built workflow: here as processes (local.py), or on Argo.

workflow.py    the YAML document -> Workflow; everything outside the subset is refused by name
templates.py   its templates: what one kind of task runs
dag.py         its tasks: order, arguments, conditions, fan-out
document.py    reading a document: types and allowed keys, errors that name the place
references.py  text with {{...}} in it
retry.py       the one retry strategy
events.py      what a running workflow tells: events, node states, the outcome
attempt.py     one process of one step
nodes.py       the tasks of the DAG, and of their fan-outs, with their states
local.py       the scheduler
recorder.py    keeps state and logs of a run in the store
holder.py      which process runs a run, and whether it lives
"""
