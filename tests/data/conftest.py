from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of a test is found by another run, and the hub is not asked."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield folder
