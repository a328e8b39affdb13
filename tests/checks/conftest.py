"""What the tests of checks share."""

from collections.abc import Iterator

import narrow
import pytest

from course.checks import config_effects as implied
from course.training import models


@pytest.fixture
def narrow_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A check takes the network for that of the config, as where the scripts were trained."""
    monkeypatch.setattr(models, "create", narrow.create)
    implied.model_size.cache_clear()
    yield
    implied.model_size.cache_clear()
