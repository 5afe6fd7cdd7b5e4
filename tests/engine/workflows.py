"""Workflows for the conformance suite: what every engine has to run alike.

Each function of `ALL` gives one document. Their steps are `python -c` snippets that take their inputs
as arguments and write files into $TRIPOD_OUTPUTS.
"""

from collections.abc import Callable
from typing import Any

from pipelines.engine.workflow import OUTPUTS_FOLDER, retry_strategy

Document = dict[str, Any]
ALL: dict[str, Callable[[], Document]] = {}

SAY = (
    "import os, pathlib, sys; pathlib.Path(os.environ['TRIPOD_OUTPUTS'], 'value').write_bytes(os.fsencode(sys.argv[1]))"
)
"""Writes its argument to the output `value`, byte for byte."""
CLOCK = (
    "import os, pathlib, time; start = time.time(); time.sleep(float(os.environ.get('CLOCK_S', '1'))); "
    "pathlib.Path(os.environ['TRIPOD_OUTPUTS'], 'value').write_text(f'{start} {time.time()}')"
)
"""Writes when it started and ended to the output `value`: a second apart, $CLOCK_S where starting takes longer."""
FAIL = "import sys; print('some work'); print('error: it went wrong', file=sys.stderr); sys.exit(int(sys.argv[1]))"
"""Exits with the code that it is given."""


def template(
    name: str, code: str, *, default: str | None = None, in_default: str | None = None, **more: Any
) -> Document:
    """A container template with an input `value` and an output `value`."""
    source = {"path": f"{OUTPUTS_FOLDER}/value"} | ({} if default is None else {"default": default})
    given = {"name": "value"} | ({} if in_default is None else {"default": in_default})
    return {
        "name": name,
        "inputs": {"parameters": [given]},
        "outputs": {"parameters": [{"name": "value", "valueFrom": source}]},
        "container": {
            "image": "python:3.11",
            "command": ["python", "-c", code],
            "args": ["{{inputs.parameters.value}}"],
            "env": [{"name": "TRIPOD_OUTPUTS", "value": OUTPUTS_FOLDER}, {"name": "RUN", "value": "{{workflow.name}}"}],
        },
    } | more


def task(name: str, kind: str = "say", value: str | None = "x", depends: str = "", **more: Any) -> Document:
    """A task with an argument `value`."""
    arguments = {} if value is None else {"arguments": {"parameters": [{"name": "value", "value": value}]}}
    return {"name": name, "template": kind} | arguments | ({"depends": depends} if depends else {}) | more


def workflow(tasks: list[Document], templates: list[Document] | None = None, **spec: Any) -> Document:
    """A Workflow of these tasks; the template `say` is always there."""
    main = {"name": "main", "dag": {"tasks": tasks}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "conformance"},
        "spec": {"entrypoint": "main", "templates": [main, template("say", SAY), *(templates or [])]} | spec,
    }


def out(name: str) -> str:
    """A reference to the output `value` of task `name`."""
    return f"{{{{tasks.{name}.outputs.parameters.value}}}}"


def _document(build: Callable[[], Document]) -> Callable[[], Document]:
    ALL[build.__name__] = build
    return build


@_document
def diamond() -> Document:
    """a, then b and c, then d, which takes from all three."""
    return workflow(
        [
            task("d", value=f"{out('a')}-{out('b')}-{out('c')}", depends="b && c"),
            task("b", value=f"b{out('a')}", depends="a"),
            task("c", value=f"c{out('a')}", depends="a"),
            task("a", value="{{workflow.parameters.first}}"),
        ],
        arguments={"parameters": [{"name": "first", "value": "1"}]},
    )


@_document
def side_by_side() -> Document:
    """Two tasks that have nothing to do with each other."""
    return workflow([task("a", "clock"), task("b", "clock")], [template("clock", CLOCK)])


@_document
def one_at_a_time() -> Document:
    """The same with parallelism 1."""
    return side_by_side() | {"spec": side_by_side()["spec"] | {"parallelism": 1}}


@_document
def conditions() -> Document:
    """`when` in all its forms, on values that arithmetic would choke on."""
    model, empty = "{{workflow.parameters.model}}", "{{workflow.parameters.empty}}"
    return workflow(
        [
            task("equal", when=f"'{model}' == 'Qwen/Qwen3-0.6B'"),
            task("unequal", when=f"'{model}' != 'Qwen/Qwen3-0.6B'"),
            task("stage", when="'pre-train' == 'pre-train'"),
            task("empty", when=f"'{empty}' == ''"),
            task("first"),
            task("later", when=f"'{out('first')}' == 'x'", depends="first"),
        ],
        arguments={"parameters": [{"name": "model", "value": "Qwen/Qwen3-0.6B"}, {"name": "empty", "value": ""}]},
    )


@_document
def skipped_outputs() -> Document:
    """Tasks that take from a skipped one: its default; the input's default; neither."""
    return workflow(
        [
            task("skipped", "known", when="'a' == 'b'"),
            task("takes-default", value=out("skipped"), depends="skipped"),
            task("bare", when="'a' == 'b'"),
            task("takes-own", "lenient", value=out("bare"), depends="bare"),
            task("after", value="ran", depends="takes-default && takes-own"),
        ],
        [template("known", SAY, default="v1"), template("lenient", SAY, in_default="own")],
    )


@_document
def skipped_output_missing() -> Document:
    """A task that takes the output of a skipped one where nobody has a default."""
    return workflow([task("bare", when="'a' == 'b'"), task("taker", value=out("bare"), depends="bare")])


@_document
def fan_out() -> Document:
    """withItems and withParam, collected."""
    return workflow(
        [
            task("items", value="{{item}}", withItems=["a", 2, True, {"k": "v"}]),
            task("list", value='["x y","","3",{"k":[1,2]}]'),
            task("each", value="<{{item}}>", depends="list", withParam=out("list")),
            task("collect", value=out("each"), depends="each"),
            task("objects", value="{{item}}", withParam='[{"b":1,"a":2},[3]]'),
            task("collect-objects", value=out("objects"), depends="objects"),
        ],
    )


@_document
def empty_fan_out() -> Document:
    """withParam of an empty list: the task is skipped and what it would give is its default."""
    return workflow(
        [
            task("none", value="[]"),
            task("each", "known", value="{{item}}", depends="none", withParam=out("none")),
            task("collect", value=out("each"), depends="each"),
        ],
        [template("known", SAY, default="[]")],
    )


@_document
def per_item_condition() -> Document:
    """A condition on the item."""
    return workflow(
        [
            task("each", value="{{item}}", withItems=["a", "b", "c"], when="'{{item}}' != 'b'"),
            task("collect", value=out("each"), depends="each"),
        ]
    )


@_document
def not_a_list() -> Document:
    """withParam of something that is no JSON list."""
    return workflow(
        [task("word", value="hello"), task("each", value="{{item}}", depends="word", withParam=out("word"))]
    )


@_document
def failing_item() -> Document:
    """One of three items fails."""
    code = "import sys; sys.exit(3 if sys.argv[1] == 'b' else 0)"
    return workflow(
        [task("each", "try", value="{{item}}", withItems=["a", "b", "c"]), task("after", depends="each")],
        [template("try", code, default="")],
    )


def _retried(code: int) -> Document:
    return workflow([task("a", "fail", value=str(code))], [template("fail", FAIL, retryStrategy=retry_strategy(2, 0))])


for _code in (1, 2, 3, 75, 76, 130, 137, 143):
    ALL[f"exit_{_code}"] = lambda code=_code: _retried(code)


@_document
def killed_by_a_signal() -> Document:
    """A process that dies by SIGKILL."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    return workflow([task("a", "die")], [template("die", code, retryStrategy=retry_strategy(1, 0))])


@_document
def failure() -> Document:
    """One branch fails; the other goes on to its end, as Argo 4.0 has it with failFast left alone."""
    return workflow(
        [
            task("bad", "fail", value="2"),
            task("after-bad", depends="bad"),
            task("after-after", depends="after-bad"),
            task("good", "clock"),
            task("after-good", depends="good"),
            task("last", depends="after-good"),
        ],
        [template("fail", FAIL), template("clock", CLOCK)],
    )


def _with_exit_handler(code: int) -> Document:
    return workflow(
        [task("a", "fail", value=str(code))],
        [
            template("fail", FAIL, default=""),
            {
                "name": "tell",
                "container": {
                    "image": "python:3.11",
                    "command": ["python", "-c", "import sys; print('status', *sys.argv[1:])"],
                    "args": ["{{workflow.status}}", "{{workflow.name}}"],
                },
            },
        ],
        onExit="tell",
    )


ALL["exit_handler_of_success"] = lambda: _with_exit_handler(0)
ALL["exit_handler_of_failure"] = lambda: _with_exit_handler(3)

VALUES = {
    "newlines": "two\nlines\r\nand\ta tab\n\nend",
    "quotes": """it's "quoted" `here` \\ there \\n""",
    "braces": '{"a": {"b": 1}} }} { f"{x!r}"',
    "shell": "$HOME $(id) ; rm -rf * | & < > # !",
    "unicode": "é 模型 👍 \u2028 \u202e e\u0301",
    "empty": "",
    "spaces": "  both  sides  ",
    "percent": "%s %(a)s %%",
    "brace": "{one} } {",
}
"""Values that have to arrive byte for byte."""


@_document
def values_of_parameters() -> Document:
    """Every value as a parameter of the workflow, through a task's argument to a process."""
    return workflow(
        [task(name, value=f"{{{{workflow.parameters.{name}}}}}") for name in VALUES],
        arguments={"parameters": [{"name": name, "value": value} for name, value in VALUES.items()]},
    )


@_document
def values_of_outputs() -> Document:
    """Every value as an output of a step, and on to the next step's argument."""
    tasks = []
    for name, value in VALUES.items():
        tasks += [task(f"make-{name}", "unhex", value=f"x{value.encode().hex()}")]
        tasks += [task(name, value=out(f"make-{name}"), depends=f"make-{name}")]
    code = (
        "import os, pathlib, sys; "
        "pathlib.Path(os.environ['TRIPOD_OUTPUTS'], 'value').write_bytes(bytes.fromhex(sys.argv[1][1:]))"
    )
    return workflow(tasks, [template("unhex", code)])


@_document
def default_outputs() -> Document:
    """Steps that write no file: one has a default, the other has none."""
    return workflow(
        [task("known", "with-default"), task("after", value=out("known"), depends="known"), task("lost", "without")],
        [template("with-default", "pass", default="fallback"), template("without", "print('done')")],
    )


@_document
def fails_before_its_output() -> Document:
    """A step that raises before it writes its output file."""
    return workflow([task("a", "raise")], [template("raise", "raise RuntimeError('the real reason')")])


@_document
def time_out() -> Document:
    """A step that takes longer than it may."""
    return workflow([task("a", "sleep")], [template("sleep", "import time; time.sleep(60)", activeDeadlineSeconds=1)])


@_document
def run_time_out() -> Document:
    """A run that takes longer than it may; its exit handler runs all the same."""
    spec = _with_exit_handler(0)["spec"]
    return workflow(
        [task("a", "sleep"), task("b", depends="a")],
        [template("sleep", "import time; time.sleep(60)"), spec["templates"][-1]],
        activeDeadlineSeconds=1,
        onExit="tell",
    )


@_document
def sleepers() -> Document:
    """A step with a child of its own, both asleep, and one that waits for it."""
    code = (
        "import os, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print('pids', os.getpid(), child.pid, flush=True); time.sleep(600)"
    )
    return workflow(
        [task("a", "sleep"), task("b", depends="a")],
        [template("sleep", code, retryStrategy=retry_strategy(5, 0)), _with_exit_handler(0)["spec"]["templates"][-1]],
        onExit="tell",
    )


@_document
def chain() -> Document:
    """Twenty small steps, one after the other."""
    return workflow([task(f"s{i}", depends=f"s{i - 1}" if i else "") for i in range(20)])
