"""Each setting is declared once, and every mistake names what was meant."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.settings import DEFAULT_DATA, RootSettings
from swarm.errors import ConfigurationError
from swarm.settings import bytes_size, choice, count, declared, directory, duration_s, load, setting, switch, text
from swarm.worker.settings import WorkerSettings


@attrs.frozen(kw_only=True)
class Section:
    slots: int = setting("tasks at a time", default=8, parse=count(1, 256), unit="tasks")
    data: Path = setting("where it keeps its files", default=Path("/tmp/x"), parse=directory)
    max_disk_bytes: int = setting("cap", default=10, parse=bytes_size, unit="bytes", option="max-disk")
    labels: tuple[str, ...] = setting("labels", parse=text, many=True, option="label")
    secret: str | None = setting("a secret", default=None, parse=choice("correct-horse"), secret=True)


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    environment = {"SWARM_SLOTS": "4", "SWARM_MAX_DISK": "2kB"}

    section = load(Section, {"slots": "2", "labels": ()}, environment)

    assert section == Section(slots=2, max_disk_bytes=2000)


def test_a_setting_that_may_be_given_often_is_separated_by_commas_in_the_environment() -> None:
    assert load(Section, {}, {"SWARM_LABEL": "fast, eu"}).labels == ("fast", "eu")
    assert load(Section, {"labels": ("a", "b")}, {}).labels == ("a", "b")


@attrs.frozen(kw_only=True)
class Keeper:
    data: Path = setting("where", default=Path("~/.local/share/task-swarm/x"), parse=directory, in_data_home=True)


def test_data_are_kept_below_the_data_home_where_one_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = tmp_path / "data"

    assert load(Keeper, {}, {"XDG_DATA_HOME": str(home)}).data == home / "task-swarm" / "x"
    for unset in ({}, {"XDG_DATA_HOME": ""}, {"XDG_DATA_HOME": "relative"}):
        assert load(Keeper, {}, unset).data == Keeper().data
    assert load(Keeper, {"data": "/given"}, {"XDG_DATA_HOME": str(home)}).data == Path("/given")


def test_data_of_before_the_data_home_was_heeded_stay_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = tmp_path / "data"
    usual = tmp_path / "home/.local/share/task-swarm/x"
    usual.mkdir(parents=True)

    assert load(Keeper, {}, {"XDG_DATA_HOME": str(home)}).data.expanduser() == usual
    (home / "task-swarm" / "x").mkdir(parents=True)
    assert load(Keeper, {}, {"XDG_DATA_HOME": str(home)}).data == home / "task-swarm" / "x"


def test_root_and_worker_keep_their_data_apart_below_the_data_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    assert load(WorkerSettings, {}, environment).data == tmp_path / "task-swarm" / "worker"
    root = load(RootSettings, {}, environment, prefix="SWARM_ROOT_").data
    assert root in {tmp_path / "task-swarm" / "root", DEFAULT_DATA}  # where this very machine has a root, it stays


def test_an_unknown_environment_variable_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(Section, {}, {"SWARM_SLOT": "4"})

    assert "SWARM_SLOT" in str(caught.value)
    assert caught.value.hint == "did you mean SWARM_SLOTS?"


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(Section, {"label": "x"}, {})

    assert caught.value.hint == "did you mean labels?"


def test_variables_of_other_programs_are_left_alone() -> None:
    environment = {"SWARM_ROOT_LISTEN": "x", "SWARM_KUBO": "y", "SWARM_URL": "z", "HOME": "/"}

    assert load(Section, {}, environment, other_prefixes=["SWARM_ROOT_"]) == Section()


def test_a_value_that_cannot_be_parsed_says_what_is_taken() -> None:
    with pytest.raises(ConfigurationError, match=r"--slots: '300' isn't a whole number from 1 to 256"):
        load(Section, {"slots": "300"}, {})


def test_a_secret_shows_in_no_error_and_no_repr() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(Section, {"secret": "hunter2"}, {})

    assert "hunter2" not in str(caught.value)
    assert "correct-horse" not in repr(load(Section, {"secret": "correct-horse"}, {}))


def test_a_required_setting_that_is_missing_is_named() -> None:
    @attrs.frozen(kw_only=True)
    class Required:
        link: str = setting("where the swarm is", parse=text)

    with pytest.raises(ConfigurationError, match="--link is missing"):
        load(Required, {}, {})


@pytest.mark.parametrize(
    ("given_text", "expected"), [("10", 10), ("1.5kB", 1500), ("2 MiB", 2 * 2**20), ("10gb", 10**10)]
)
def test_sizes_are_bytes(given_text: str, expected: int) -> None:
    assert bytes_size(given_text) == expected


@pytest.mark.parametrize(("given_text", "expected"), [("8", 8.0), ("250ms", 0.25), ("5m", 300.0), ("2h", 7200.0)])
def test_durations_are_seconds(given_text: str, expected: float) -> None:
    assert duration_s(given_text) == expected


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_a_value_error(said: str) -> None:
    for parse in (bytes_size, duration_s, count(0, 9), switch, choice("a", "b")):
        try:
            parse(said)
        except ValueError:
            continue


def test_every_declaration_has_an_option_a_variable_and_help() -> None:
    slots, *_ = declared(Section)

    assert (slots.option, slots.variable, slots.unit) == ("slots", "SWARM_SLOTS", "tasks")
    assert all(one.help for one in declared(Section))
