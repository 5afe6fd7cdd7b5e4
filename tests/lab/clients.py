"""What a client of the lab needs: images of the steps in both clusters, and a file of shell variables that names all.

. ~/.cache/tripod/lab/run/env     then `python -m pipelines.train --site lab` is team-a's
"""

import os

from tests.lab import images, step_images, storage
from tests.lab.places import CLUSTERS, COMPUTE, ENV_FILE, GPU, Place

_USED = {COMPUTE: ("data", "train", "serve"), GPU: ("train", "serve")}
"""Images of step_images.py that pods of a cluster use: the launchers of train and deploy run in those of their pods."""


def load_images(place: Place) -> None:
    """Import those that are built. Their names are then in the variables TRIPOD_IMAGE_*."""
    for name in _USED[place]:
        if (archive := step_images.built(name)) is not None:
            images.load_by_digest(place, archive, name)


def variables(team: str = "team-a") -> dict[str, str]:
    """The environment of a team's client."""
    kubeconfigs = {f"TRIPOD_{place.name.upper()}_KUBECONFIG": str(place.kubeconfig) for place in CLUSTERS}
    names = {}
    for place, used in _USED.items():
        for name in used:
            if (archive := step_images.built(name)) is not None:
                names[f"TRIPOD_IMAGE_{name.upper()}"] = images.load_by_digest(place, archive, name)
    return {**kubeconfigs, **names, **storage.identity(team)}


def write() -> None:
    """The file for shells."""
    text = "".join(f"export {name}='{value}'\n" for name, value in variables().items())
    ENV_FILE.touch(mode=0o600)
    os.chmod(ENV_FILE, 0o600)
    ENV_FILE.write_text(text)
