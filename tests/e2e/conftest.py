"""Fixtures: the tiny model that the clusters serve."""

import pytest
import torch

from tests import tiny


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def model(model_folder):
    """The reference; one thread, as tiny matrices gain nothing from two."""
    torch.set_num_threads(1)
    return tiny.make(model_folder)
