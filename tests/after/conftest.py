"""One thread for torch: tests run side by side, and threads of several processes spin for each other."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Many times faster here than two threads on two busy cores."""
    torch.set_num_threads(1)
