"""A DAG of another team, which uses published steps: in plain YAML, and made by Hera."""

from collections.abc import Mapping

from hera.workflows import DAG, Parameter, Task, Workflow
from hera.workflows.models import TemplateRef

_PLAIN = """apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata:
  generateName: other-
  namespace: team-a
spec:
  entrypoint: main
  serviceAccountName: tripod-workflow
  templates:
    - name: main
      dag:
        tasks:
          - name: read
            templateRef: {{name: {ingest}, template: ingest}}
            arguments:
              parameters:
                - name: source
                  value: python:stdlib
                - name: include
                  value: '["json/*.py"]'
          - name: words
            depends: read
            templateRef: {{name: {tokenizer}, template: tokenizer}}
            arguments:
              parameters:
                - name: docs
                  value: "{{{{tasks.read.outputs.parameters.docs}}}}"
                - name: vocab_size
                  value: "300"
"""


def plain_dag(names: Mapping[str, str]) -> str:
    """As somebody would write it by hand.

    Args:
        names: step -> WorkflowTemplate.
    """
    return _PLAIN.format(ingest=names["ingest"], tokenizer=names["tokenizer"])


def hera_dag(names: Mapping[str, str]) -> str:
    """The same by Hera."""
    with (
        Workflow(
            generate_name="other-", entrypoint="main", namespace="team-a", service_account_name="tripod-workflow"
        ) as made,
        DAG(name="main"),
    ):
        read = Task(
            name="read",
            template_ref=TemplateRef(name=names["ingest"], template="ingest"),
            arguments=[
                Parameter(name="source", value="python:stdlib"),
                Parameter(name="include", value='["json/*.py"]'),
            ],
        )
        docs = Parameter(name="docs", value="{{tasks.read.outputs.parameters.docs}}")
        words = Task(
            name="words",
            template_ref=TemplateRef(name=names["tokenizer"], template="tokenizer"),
            arguments=[docs, Parameter(name="vocab_size", value="300")],
        )
        read >> words
    return str(made.to_yaml())
