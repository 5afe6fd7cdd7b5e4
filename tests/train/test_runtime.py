"""Settings of the place."""

import os

import pytest

from steps.lib.errors import UserError
from steps.train.runtime import Runtime, read_runtime


def test_nothing_set_is_one_cpu_process() -> None:
    assert read_runtime({}) == Runtime(threads=os.cpu_count())
    assert read_runtime({"TRIPOD_NPROC": "2"}).threads == max(1, os.cpu_count() // 2)


def test_a_pod_of_kubeflow_trainer() -> None:
    env = {
        "PET_NNODES": "4",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "3",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29400",
        "TRIPOD_DEVICE": "cuda",
        "TRIPOD_NODES": "4",
        "TRIPOD_NPROC": "8",
        "TRIPOD_GRACE_S": "600",
        "TRIPOD_PEAK_TFLOPS": "2250",
    }
    runtime = read_runtime(env)
    assert (runtime.ranks, runtime.node_rank, runtime.backend) == (32, 3, "nccl")
    assert (runtime.master_addr, runtime.master_port) == ("train-node-0-0.train", 29400)
    assert (runtime.grace_s, runtime.peak_tflops) == (600, 2250.0)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TRIPOD_NPROC": "8", "PET_NPROC_PER_NODE": "4"}, "TRIPOD_NPROC: got 8, but PET_NPROC_PER_NODE is 4"),
        ({"TRIPOD_NODES": "2", "PET_NNODES": "4"}, "TRIPOD_NODES: got 2, but PET_NNODES is 4"),
        ({"PET_NPROC_PER_NODE": "auto"}, "PET_NPROC_PER_NODE: got 'auto', allowed is a number"),
        ({"TRIPOD_NPROC": "0"}, "TRIPOD_NPROC: Input should be greater than or equal to 1, got '0'"),
        ({"TRIPOD_NPROC": "two"}, "TRIPOD_NPROC: Input should be a valid integer"),
        ({"TRIPOD_DEVICE": "tpu"}, "TRIPOD_DEVICE: Input should be 'cpu' or 'cuda', got 'tpu'"),
        ({"TRIPOD_BACKEND": "nccl"}, "TRIPOD_BACKEND: got 'nccl' with TRIPOD_DEVICE=cpu, allowed there is gloo"),
        ({"TRIPOD_NODES": "2"}, "PET_MASTER_ADDR: not set, needed for 2 nodes"),
        ({"TRIPOD_GRACE_S": "0"}, "TRIPOD_GRACE_S: "),
    ],
)
def test_refusals_name_the_variable(env: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as e:
        read_runtime(env)
    assert str(e.value).startswith(message)


def test_auto_is_fine_where_the_number_is_set_too() -> None:
    assert read_runtime({"PET_NPROC_PER_NODE": "auto", "TRIPOD_NPROC": "2"}).nproc == 2
