"""A training as a TrainJob on the GPU cluster: submitted once, watched, adopted, cancelled.

    place.py      where: queue, runtime, image, sizes; from the environment
    build.py      spec -> TrainJob, pure
    objects.py    conditions, times and pods, as Kubernetes writes them
    state.py      TrainJob, Workload, JobSet, pods -> one phase with its reason, pure
    quota.py      how many nodes the queue can give, pure
    preflight.py  what is refused before anything is submitted
    attempts.py   the attempt number, an object in the store beside the lease
    logs.py       the pods' logs, in parts in the store
    cancel.py     the documented way to stop a run's GPU jobs, and to find those left over
    sweep.py      finished TrainJobs that no launcher came back for
    training.py   one training as the launcher holds it
    submit.py     the attempt to follow: adopted or created
    follow.py     to its end
    launcher.py   all of it together: submit or adopt, follow, keep the outcome, delete

The record that node 0's pod leaves in the store is the outcome; what Kubernetes says only tells why
there is none. One train-key never has two TrainJobs: the name is made of key and attempt number, and
the number rises only by compare-and-swap once the attempt before has ended and its pods are gone.
"""
