"""config/clusters: what is shipped for the two clusters."""

from pathlib import Path

import yaml

CLUSTERS = Path(__file__).resolve().parent.parent / "config/clusters"


def test_pods_are_held_to_the_same_on_both_clusters():
    """Each cluster has a repository of its own, so the policy stands in both; it must not drift apart."""
    compute, gpu = (
        [o for o in yaml.safe_load_all((CLUSTERS / f"{name}/base/admission.yaml").read_text()) if _is_of_pods(o)]
        for name in ("compute", "gpu")
    )
    assert [o["kind"] for o in gpu] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    assert compute == gpu


def _is_of_pods(thing: dict) -> bool:
    return thing["metadata"]["name"] == "tripod-pods"
