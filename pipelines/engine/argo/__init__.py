"""The second engine: Argo Workflows on the Compute cluster runs the same Workflow document.

submit.py   create it, and read it back; cancel it
status.py   a Workflow's status -> nodes as the local engine names them; pure
follow.py   poll it, tell what happened as the local engine does, until it has ended
logs.py     what pods write, into a file each, as it comes
"""
