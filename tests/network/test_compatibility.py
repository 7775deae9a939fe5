"""What the server of a federation cannot see is not promised: refused by name, before anything starts."""

from __future__ import annotations

import pytest

from fedframe.errors import SettingError
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_data_stay_local, check_measures, check_min_clients
from fedframe.settings import Settings


@pytest.mark.parametrize(("measure", "named"), [("drift", "drift"), ("all", "cka,drift"), ("cka,collapse", "cka")])
def test_measures_of_single_updates_are_refused_with_secure_aggregation(measure: str, named: str) -> None:
    settings = Settings(method="fedavg", measure=measure, secure=True, engine="flower", min_clients=2)
    with pytest.raises(SettingError, match=f"measure = {named} looks at single updates"):
        check_measures(settings, data_is_local=True)
    check_measures(settings.model_copy(update={"measure": "collapse"}), data_is_local=True)


@pytest.mark.parametrize(("measure", "named"), [("collapse", "collapse"), ("all", "cka,collapse,local")])
def test_measures_of_samples_are_refused_where_data_stay_with_the_nodes(measure: str, named: str) -> None:
    settings = Settings(method="fedavg", measure=measure, engine="flower")
    with pytest.raises(SettingError, match=f"measure = {named} needs samples on the server"):
        check_measures(settings, data_is_local=False)
    check_measures(settings, data_is_local=True)
    check_measures(settings.model_copy(update={"measure": "drift"}), data_is_local=False)


def test_clients_that_are_kept_out_are_refused_where_data_stay_with_the_nodes() -> None:
    settings = Settings(method="fedavg", new_clients=0.2, engine="flower")
    with pytest.raises(SettingError, match="new_clients keeps clients out"):
        check_measures(settings, data_is_local=False)
    check_measures(settings, data_is_local=True)


@pytest.mark.parametrize("method", ["central", "ratioloss", "fedavg+pooled_head"])
def test_methods_that_need_data_in_one_place_are_refused(method: str) -> None:
    with pytest.raises(SettingError, match="needs clients' training data on the server"):
        check_data_stay_local(make_method(method, {}))


def test_a_minimum_above_what_is_asked_for_is_refused() -> None:
    settings = Settings(method="fedavg", engine="flower", min_clients=3, participation=0.5)
    with pytest.raises(SettingError, match=r"min_clients = 3: there are 2 clients .*0.5 of 4.*use min_clients = 2"):
        check_min_clients(settings, 4)
    check_min_clients(settings, 6)
