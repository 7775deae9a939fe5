"""What settings mean that are not given."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedframe.errors import SettingError
from fedframe.jobs.gather import gather
from fedframe.settings import Settings, check


@pytest.mark.parametrize("secure", [True, "true", "yes", 1])
def test_secure_sums_have_all_clients_unless_fewer_are_asked_for(secure: object) -> None:
    assert check({"secure": secure}).min_clients == "all"
    assert check({"secure": secure, "min_clients": 2}).min_clients == 2
    assert check({"secure": secure, "min_clients": "3"}).min_clients == 3
    assert check({"secure": False}).min_clients is None


def test_settings_of_before_mean_what_they_meant(tmp_path: Path) -> None:
    """They name every setting; and a plain run's, made secure by an option, has chosen nothing."""
    old, plain = ({**Settings(secure=secure).model_dump(mode="json"), "min_clients": None} for secure in (True, False))
    for name, values in (("old", old), ("plain", plain)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    assert gather({}, tmp_path / "old.yaml").min_clients is None
    assert gather({"secure": True}, tmp_path / "old.yaml").min_clients is None
    assert gather({"secure": True}, tmp_path / "plain.yaml").min_clients == "all"
    assert gather({"secure": True, "min_clients": 2}, tmp_path / "plain.yaml").min_clients == 2


@pytest.mark.parametrize("value", [0, -1, "some", 10**18, 1.5])
def test_odd_numbers_of_clients_are_one_sentence(value: object) -> None:
    with pytest.raises(SettingError, match=r"^min_clients = .*fewest replies of a round, or all") as caught:
        check({"min_clients": value})
    assert str(caught.value).count("min_clients =") == 1
