"""The second engine: Argo Workflows on the Compute cluster runs the same Workflow document.

workflows.py  where Workflows are kept: the seam, and the Kubernetes API behind it
server.py     the same behind an Argo server
submit.py     create one, and read it back; cancel it
status.py     a Workflow's status -> nodes as the local engine names them; pure
failures.py   what became of an attempt, in the local engine's words and codes; pure
results.py    how a node and the whole ended; pure
waits.py      why a pod does not start; pure
follow.py     poll it, tell what happened as the local engine does, until it has ended
logs.py       what pods write, into a file each, as it comes
"""
