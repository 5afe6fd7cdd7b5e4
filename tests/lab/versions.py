"""What the lab is made of, by Go module and version. README's list of tested versions is this one."""

from dataclasses import dataclass

KUBERNETES = "v1.35.4"
_PLAIN = "-s -w"
_K8S = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Program:
    """One program, built from a pinned module."""

    name: str
    module: str
    version: str
    package: str
    ldflags: str = _PLAIN


def _kubernetes(name: str) -> Program:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    flags = f"{_PLAIN} -X {_K8S}.gitVersion={KUBERNETES} -X {_K8S}.gitMajor={major} -X {_K8S}.gitMinor={minor}"
    return Program(name, "k8s.io/kubernetes", KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", flags)


ARGO = ("github.com/argoproj/argo-workflows/v4", "v4.0.7")
KUEUE = ("sigs.k8s.io/kueue", "v0.17.0")
JOBSET = ("sigs.k8s.io/jobset", "v0.11.1")
TRAINER = ("github.com/kubeflow/trainer/v2", "v2.2.0")
KWOK = ("sigs.k8s.io/kwok", "v0.8.0")
VERSITYGW = ("github.com/versity/versitygw", "v1.8.0")

PROGRAMS = (
    *(
        _kubernetes(name)
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kubectl",
            "kube-proxy",
        )
    ),
    Program("etcd", "go.etcd.io/etcd/server/v3", "v3.6.16", "go.etcd.io/etcd/server/v3"),
    Program("kueue", *KUEUE, "sigs.k8s.io/kueue/cmd/kueue"),
    Program("jobset", *JOBSET, "sigs.k8s.io/jobset"),
    Program("trainer-controller-manager", *TRAINER, "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),
    Program("kwok", *KWOK, "sigs.k8s.io/kwok/cmd/kwok"),
    Program("coredns", "github.com/coredns/coredns", "v1.14.7", "github.com/coredns/coredns"),
    Program("versitygw", *VERSITYGW, "github.com/versity/versitygw/cmd/versitygw"),
    Program("workflow-controller", *ARGO, "./cmd/workflow-controller"),
    Program("argoexec", *ARGO, "./cmd/argoexec"),
    Program("argo", *ARGO, "./cmd/argo"),
)
