"""Every key says what it means, beside its field."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cluster.config.descriptions import all_sections, descriptions
from cluster.config.schema import TandemConfig

SECTIONS = list(dict.fromkeys(all_sections(TandemConfig)))


@dataclass
class Spoken:
    """A section."""

    a: int = 1
    """What a means,
    in two lines.
    """
    b: dict[str, int] = field(default_factory=dict)
    """What b means."""


@dataclass
class Silent:
    """A section."""

    a: int = 1
    b: int = 2
    """What b means."""


def test_a_meaning_is_the_text_below_its_field() -> None:
    assert descriptions(Spoken) == {"a": "What a means, in two lines.", "b": "What b means."}


def test_a_key_that_says_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="Silent does not say what a mean"):
        descriptions(Silent)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_of_the_configuration_says_what_it_means(section: type) -> None:
    assert all(meaning.endswith(".") for meaning in descriptions(section).values())
