"""The steps: how one thing is done, one module a step.

Importing this package imports no step; `steps.contract` says what a step is.
"""
