"""Settings, each declared once: name, default, unit, environment variable, help; parsed once into a frozen section.

A section is an ``attrs.frozen`` class whose fields are made by ``setting``. From that one declaration come the command
line option, the environment variable, the help text, the docs and the parser. An entry point calls ``load`` with what
its command line gave and the environment; everything below it gets the section, or keyword arguments of it.

This module reads no file and no environment by itself, and knows no command line library. It looks once whether a
data directory of earlier days is there.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from swarm.errors import ConfigurationError

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Declared",
    "bytes_size",
    "choice",
    "count",
    "declared",
    "directory",
    "duration_s",
    "fraction",
    "load",
    "nearest",
    "number",
    "setting",
    "switch",
    "text",
]

ENVIRONMENT_PREFIX: Final = "SWARM_"

#: Variables of the project that belong to no section: the client's profile and the path of the tests' Kubo.
OTHER_VARIABLES: Final = frozenset(
    {"SWARM_CACHE", "SWARM_KEY", "SWARM_KUBO", "SWARM_PROFILE", "SWARM_URL", "SWARM_VENV"}
)

_METADATA: Final = "swarm_setting"
_UNITS_OF_BYTES: Final = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "ki": 1024,
    "kib": 1024,
    "mi": 1024**2,
    "mib": 1024**2,
    "gi": 1024**3,
    "gib": 1024**3,
    "ti": 1024**4,
    "tib": 1024**4,
}
_UNITS_OF_TIME: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

S = TypeVar("S")


@attrs.frozen(kw_only=True)
class Declared:
    """One setting of a section, as declared.

    Args:
        field: the attribute of the section.
        option: the command line option, without dashes.
        variable: the environment variable.
        default: what applies where nothing is said.
        unit: what a bare number means, for people.
        help: one sentence.
        parse: text → value; raises ``ValueError`` with a clause that says what is taken.
        many: may be given several times; in the environment separated by commas.
        secret: its value is never shown.
        hidden: not in ``--help``; for tests and experts.
        choices: all texts that are taken, where they are few.
        in_data_home: the default is a directory below ``~/.local/share``, or below ``XDG_DATA_HOME`` where that is set.
    """

    field: str
    option: str
    variable: str
    default: Any
    unit: str | None
    help: str
    parse: Callable[[str], Any]
    many: bool
    secret: bool
    hidden: bool
    choices: tuple[str, ...]
    in_data_home: bool

    def read(self, given: str | Sequence[str], *, source: str) -> Any:
        """Parse what was given; ``source`` names where, for the error.

        Raises:
            ConfigurationError: the text isn't a value of this setting.
        """
        texts = [given] if isinstance(given, str) else list(given)
        try:
            if self.many:
                return tuple(self.parse(text) for text in texts)
            (single,) = texts
            return self.parse(single)
        except ValueError as fault:
            shown = "the given secret" if self.secret else f"{given!r}"
            raise ConfigurationError(f"{source}: {shown} isn't {fault}", hint=self.help) from fault


def setting(
    help: str,  # noqa: A002 -- it *is* the help
    *,
    default: Any = attrs.NOTHING,
    parse: Callable[[str], Any],
    option: str | None = None,
    unit: str | None = None,
    many: bool = False,
    secret: bool = False,
    hidden: bool = False,
    in_data_home: bool = False,
) -> Any:
    """Declare a field of a section.

    Args:
        help: one sentence, lower case, without a full stop.
        default: the value where nothing is said; a required setting has none.
        parse: text → value, see ``Declared``.
        option: the option's name where it isn't the field's.
        unit: what a bare number means.
        many: may be given several times; the value is a tuple.
        secret: keep it out of ``repr``, logs and errors.
        hidden: keep it out of ``--help``.
        in_data_home: see ``Declared``.
    """
    if many and default is attrs.NOTHING:
        default = ()
    metadata = {"help": help, "parse": parse, "option": option, "unit": unit, "many": many}
    metadata |= {"secret": secret, "hidden": hidden, "in_data_home": in_data_home}
    return attrs.field(default=default, repr=not secret, metadata={_METADATA: metadata})


def declared(section: type, *, prefix: str = ENVIRONMENT_PREFIX) -> tuple[Declared, ...]:
    """All settings of a section, in the order of their declaration."""
    return tuple(_declared(section, prefix))


def _declared(section: type, prefix: str) -> Iterator[Declared]:
    for field in attrs.fields(section):
        told = field.metadata.get(_METADATA)
        if told is None:
            continue
        option = told["option"] or field.name.replace("_", "-")
        yield Declared(
            field=field.name,
            option=option,
            variable=prefix + option.replace("-", "_").upper(),
            default=field.default,
            unit=told["unit"],
            help=told["help"],
            parse=told["parse"],
            many=told["many"],
            secret=told["secret"],
            hidden=told["hidden"],
            choices=getattr(told["parse"], "choices", ()),
            in_data_home=told["in_data_home"],
        )


def load(
    section: type[S],
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    prefix: str = ENVIRONMENT_PREFIX,
    other_variables: Collection[str] = (),
    other_prefixes: Sequence[str] = (),
) -> S:
    """Make a section: the command line wins over the environment, and that over the default.

    Args:
        section: the ``attrs`` class.
        given: texts by field name, as the command line had them; None or () is "not given". A value that isn't text
            is taken as already parsed (for programs that compose a section themselves).
        environment: the environment; variables that begin with ``prefix`` have to be known.
        prefix: what this program's variables begin with.
        other_variables: variables of other programs that may stand in the same environment.
        other_prefixes: prefixes of other programs' variables.

    Raises:
        ConfigurationError: a value that can't be parsed, a required one that is missing, or an unknown name; the
            message names the nearest.
    """
    settings = declared(section, prefix=prefix)
    fields = {one.field for one in settings}
    for name in given:
        if name not in fields:
            raise _unknown("setting", name, fields)
    variables = {one.variable for one in settings} | OTHER_VARIABLES | set(other_variables)
    for name in environment:
        if name.startswith(prefix) and name not in variables and not name.startswith(tuple(other_prefixes)):
            raise _unknown("environment variable", name, variables)
    values: dict[str, Any] = {}
    for one in settings:
        on_line = given.get(one.field)
        in_environment = environment.get(one.variable)
        if on_line is not None and on_line != ():
            values[one.field] = one.read(on_line, source=f"--{one.option}") if _is_text(on_line) else on_line
        elif in_environment is not None:
            texts = [part.strip() for part in in_environment.split(",") if part.strip()]
            values[one.field] = one.read(texts if one.many else in_environment, source=one.variable)
        elif one.default is attrs.NOTHING:
            raise ConfigurationError(f"--{one.option} is missing", hint=f"{one.help}; or set {one.variable}")
        elif one.in_data_home:
            values[one.field] = _in_data_home(one.default, environment)
    return section(**values)


def _in_data_home(usual: Path, environment: Mapping[str, str]) -> Path:
    """Where a program keeps its data: below ``XDG_DATA_HOME``, unless it has kept them at the usual place till now."""
    base = Path(environment.get("XDG_DATA_HOME") or "")
    if not base.is_absolute():  # the XDG base directory specification: such a path is to be ignored
        return usual
    moved = base.joinpath(*usual.parts[-2:])
    return usual if os.path.exists(usual.expanduser()) and not os.path.exists(moved) else moved


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (tuple, list)) and all(isinstance(part, str) for part in value))


def _unknown(what: str, name: str, known: Collection[str]) -> ConfigurationError:
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else f"known are {', '.join(sorted(known))}"
    return ConfigurationError(f"there is no {what} {name}", hint=hint)


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that is most like ``name``, None where none is."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), None)


# ── parsers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def text(given: str) -> str:
    """Any text that isn't empty."""
    if not given.strip():
        raise ValueError("a text")
    return given.strip()


def directory(given: str) -> Path:
    """A path, with ``~`` for the home directory."""
    return Path(text(given)).expanduser()


def switch(given: str) -> bool:
    """``on`` or ``off``, and what people write instead."""
    said = given.strip().lower()
    if said in {"on", "yes", "true", "1"}:
        return True
    if said in {"off", "no", "false", "0"}:
        return False
    raise ValueError("on or off")


switch.choices = ("on", "off")  # type: ignore[attr-defined]


def count(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of whole numbers within bounds."""

    def parse(given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            raise ValueError(f"a whole number from {minimum} to {maximum}") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return value

    return parse


def number(minimum: float, maximum: float = math.inf) -> Callable[[str], float]:
    """A parser of numbers within bounds."""

    def parse(given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            raise ValueError(f"a number from {minimum:g} to {maximum:g}")
        return value

    return parse


def fraction(given: str) -> float:
    """A number from 0 to 1."""
    return number(0.0, 1.0)(given)


def choice(*choices: str) -> Callable[[str], str]:
    """A parser that takes one of a few words."""

    def parse(given: str) -> str:
        said = given.strip().lower()
        if said not in choices:
            close = nearest(said, choices)
            raise ValueError(f"one of {', '.join(choices)}" + (f" (did you mean {close}?)" if close else ""))
        return said

    parse.choices = choices  # type: ignore[attr-defined]
    return parse


def duration_s(given: str) -> float:
    """Seconds, or a number with ms, s, m, h or d."""
    return _scaled(given, _UNITS_OF_TIME, "a duration such as 8, 90s, 5m or 2h")


def bytes_size(given: str) -> int:
    """Bytes, or a number with a unit such as 500MB or 10GiB."""
    return int(_scaled(given, _UNITS_OF_BYTES, "a size such as 500MB or 10GiB"))


def _scaled(given: str, units: Mapping[str, float], wanted: str) -> float:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given)
    if found is None or found[2].lower() not in units:
        raise ValueError(wanted)
    return float(found[1]) * units[found[2].lower()]
